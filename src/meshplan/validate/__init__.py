"""Predicted against measured runs, and profiles fitted to measured runs."""

from __future__ import annotations

from meshplan.validate.run import run

__all__ = ["run"]
