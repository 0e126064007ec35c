"""Read a JSON file as people have them: big, broken, binary, or with NaN and Infinity in it."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshplan.errors import UserError, os_reason
from meshplan.inputs.load.opening import read_bytes

__all__ = ["MAX_CONFIG_BYTES", "parse_json", "read_json_file"]

# A config.json is some kilobytes; the largest in use, with quantisation lists, stay below 1 MB.
MAX_CONFIG_BYTES = 16 * 2**20
_MAX_DEPTH = 64


def read_json_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a file that holds one JSON object.

    Never reads more than :data:`MAX_CONFIG_BYTES`, whatever the size of the file.

    Args:
        path: the file.

    Returns:
        The object, and the keys that stand twice in it (the last value counts).

    Raises:
        UserError: when the file cannot be read or holds no JSON object.
    """
    where = str(path)
    try:
        raw = read_bytes(path, most_bytes=MAX_CONFIG_BYTES)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO):
            raise UserError.of("model_file_not_regular", where=where) from None
        raise UserError.of(
            "model_file_unreadable", where=where, os_reason=os_reason(error)
        ) from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise UserError.of("model_file_too_large", where=where, limit_mib=MAX_CONFIG_BYTES // 2**20)
    return parse_json(raw, where=where)


def parse_json(raw: bytes | str, *, where: str) -> tuple[dict[str, Any], list[str]]:
    """Parse one JSON object; NaN and Infinity are let through.

    Args:
        raw: the text, or its bytes in UTF-8 or UTF-16.
        where: what to call it in errors.

    Returns:
        The object, and the keys that stand twice in it.

    Raises:
        UserError: when it is no JSON object.
    """
    text = _decode(raw, where) if isinstance(raw, bytes) else raw
    if not text.strip():
        raise UserError.of("model_file_empty", where=where)
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result and key not in repeated:
                repeated.append(key)
            result[key] = value
        return result

    try:
        value = json.loads(text, object_pairs_hook=collect)
    except json.JSONDecodeError as error:
        raise UserError.of(
            "model_json_malformed",
            where=where,
            reason=error.msg,
            line=error.lineno,
            column=error.colno,
        ) from None
    except RecursionError:
        raise UserError.of("model_json_too_deep", where=where, limit=_MAX_DEPTH) from None
    except ValueError:  # an integer with more digits than Python converts
        raise UserError.of("model_json_number_too_long", where=where) from None
    if not isinstance(value, dict):
        raise UserError.of("model_json_not_object", where=where, value=type(value).__name__)
    if _depth(value) > _MAX_DEPTH:
        raise UserError.of("model_json_too_deep", where=where, limit=_MAX_DEPTH)
    return value, repeated


def _decode(raw: bytes, where: str) -> str:
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        raise UserError.of("model_file_not_text", where=where) from None
    if "\0" in text:
        raise UserError.of("model_file_not_text", where=where)
    return text


def _depth(value: object) -> int:
    """Levels of nesting, counted without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = inner
    return depth
