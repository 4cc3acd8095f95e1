"""Web pages and APIs: guarded HTTP, readable text, and a reader model."""
