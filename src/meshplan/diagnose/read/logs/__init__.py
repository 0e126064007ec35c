"""Console logs, one module per family of frameworks."""
