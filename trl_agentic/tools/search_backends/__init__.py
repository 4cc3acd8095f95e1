"""Where a search looks: BM25, dense, hybrid, and the web."""
