"""Launch configs: a plan in the words of the framework that is to run it."""
