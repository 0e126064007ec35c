"""Plan how to spread the training of a large model over many GPUs."""

__version__ = "0.1.0"
__all__ = ["__version__"]
