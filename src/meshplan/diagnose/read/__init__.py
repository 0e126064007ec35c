"""Readers of what a profiler or a framework wrote."""
