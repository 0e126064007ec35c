"""Results as text, without what it takes to make them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["SCHEMA_VERSION", "VOLATILE", "to_json"]

SCHEMA_VERSION = "1.0"
VOLATILE = ("elapsed_s", "evaluations_per_s")
"""The only values that differ between two runs of one request."""


def to_json(result: Mapping[str, Any]) -> str:
    """The text that ``--json`` prints and the web sends, equal for equal results."""
    return json.dumps(result, ensure_ascii=False, allow_nan=False, indent=2)
