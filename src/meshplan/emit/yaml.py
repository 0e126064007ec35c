"""YAML as people write it: text of several lines as a block."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["block_yaml"]


class _Dumper(yaml.SafeDumper):
    """Keeps keys in order and writes text with line breaks as a literal block."""


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def block_yaml(value: Any) -> str:
    """Write plain values as YAML 1.1 that every reader takes alike."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return text
