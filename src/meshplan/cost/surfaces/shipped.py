"""The measured tables and constants that lie beside the code."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["shipped"]


@lru_cache(maxsize=8)
def shipped(name: str) -> dict[str, Any]:
    """Return the document of one file, such as ``kernels``."""
    text = Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
