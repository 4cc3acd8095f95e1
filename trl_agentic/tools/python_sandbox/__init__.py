"""The process that [`PythonSandbox`] starts. Standard library only: it is imported there, outside the package."""
