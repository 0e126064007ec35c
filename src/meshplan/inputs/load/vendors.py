"""Which framework runs on whose devices, and what an answer has to say about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import yaml

from meshplan.inputs.load.presets import PRESETS, Loader

__all__ = ["framework_notes", "vendor_table"]


@lru_cache(maxsize=1)
def vendor_table() -> dict[str, Any]:
    """The preset: ``sources``, and by vendor and framework how it runs there."""
    text = (PRESETS / "vendors.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, Loader)
    return content


def framework_notes(vendor: str, frameworks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Note frameworks that run on a vendor's devices through something else, or not at all.

    Args:
        vendor: see :class:`~meshplan.inputs.cluster.Device`; one that is not listed says nothing.
        frameworks: the frameworks asked about.

    Yields:
        ``(code, value)`` pairs; the sentences are ``assumed.<code>``.
    """
    table = vendor_table()["vendors"].get(vendor)
    if table is None:
        return
    absent = [name for name in frameworks if name not in table]
    if absent:
        code = "framework_not_on_tpu" if "maxtext" in table else "framework_not_on_device"
        yield code, ", ".join(absent)
    for name in frameworks:
        through = table.get(name, {}).get("through")
        if through:
            yield "framework_through", f"{name}: {through}"
