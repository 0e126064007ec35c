"""Tables and constants of the time model, each with its source."""

from __future__ import annotations

from meshplan.cost.surfaces.collective_tables import (
    bus_bandwidth,
    collective_table_of,
    scale_up_time,
)
from meshplan.cost.surfaces.constants import constant, constants, per_framework
from meshplan.cost.surfaces.scans import scan_bandwidth, scan_table_of
from meshplan.cost.surfaces.tables import (
    AttentionSurface,
    GemmSurface,
    attention_surface,
    gemm_surface,
    table_of,
)

__all__ = [
    "AttentionSurface",
    "GemmSurface",
    "attention_surface",
    "bus_bandwidth",
    "collective_table_of",
    "constant",
    "constants",
    "gemm_surface",
    "per_framework",
    "scale_up_time",
    "scan_bandwidth",
    "scan_table_of",
    "table_of",
]
