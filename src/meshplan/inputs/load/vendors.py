"""Which framework runs on whose devices, and what an answer has to say about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import yaml

from meshplan.inputs.load.presets import PRESETS, Loader

__all__ = ["framework_notes", "frameworks_at_home", "vendor_table"]


@lru_cache(maxsize=1)
def vendor_table() -> dict[str, Any]:
    """The preset: ``sources``, and by vendor and framework how it runs there."""
    text = (PRESETS / "vendors.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, Loader)
    return content


def frameworks_at_home(vendor: str) -> tuple[str, ...]:
    """Frameworks that run on a vendor's devices, or whose rules are those of one that does.

    Args:
        vendor: see :class:`~meshplan.inputs.cluster.Device`.

    Returns:
        Names, the vendor's own first; none for a vendor that is not listed, where all may run.
    """
    table = vendor_table()["vendors"].get(vendor, {})
    return tuple(entry.get("planned_as", name) for name, entry in table.items())


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
    planned_as = {entry.get("planned_as", ""): name for name, entry in table.items()}
    absent = [name for name in frameworks if name not in table and name not in planned_as]
    if absent:
        code = "framework_not_on_tpu" if "maxtext" in table else "framework_not_on_device"
        yield code, ", ".join(absent)
    for name in frameworks:
        if name in planned_as:
            yield f"framework_for_{planned_as[name]}", name
    for name in frameworks:
        through = table.get(name, {}).get("through")
        if through:
            yield "framework_through", f"{name}: {through}"
