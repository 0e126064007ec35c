"""Parsers that turn files and flags into the records of ``meshplan.inputs``."""
