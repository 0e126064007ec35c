"""Results as text, without what it takes to make them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["SCHEMA_VERSION", "to_json"]

SCHEMA_VERSION = "1.1"


def to_json(result: Mapping[str, Any], *, compact: bool = False) -> str:
    """The text that ``--json`` prints and the web sends, equal for equal results.

    Args:
        result: what to write.
        compact: on one line, in a fraction of the time: for what another process reads at once.
    """
    if compact:
        from msgspec.json import encode

        return encode(result).decode()
    return json.dumps(result, ensure_ascii=False, allow_nan=False, indent=2)
