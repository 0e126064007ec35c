"""Rules of thumb for choosing data, tensor and pipeline parallelism.

Decide in this order: memory first, then communication, then the degrees. Memory here is in GB
(1e9 bytes) because the rule is stated per 1e9 parameters; the full model counts bytes.
"""

from meshplan.thumb.choose import (
    BYTES_PER_PARAM,
    Bottleneck,
    Candidate,
    Degrees,
    Dimension,
    SizeTier,
    Strategy,
    communication_score,
    dimension_for,
    estimate_memory_gb,
    find_bottlenecks,
    list_candidates,
    medium_limit_b,
    recommend,
    size_tier,
    solve_degrees,
    strategy_for,
)
from meshplan.thumb.diagnose import Diagnosis, Finding, diagnose
from meshplan.thumb.matrices import column_parallel, column_shards, row_parallel, row_shards
from meshplan.thumb.speed import (
    bubble_fraction,
    efficiency,
    ideal_speedup,
    imbalance,
    micro_batches_for_bubble,
    pace,
    real_speedup,
)
from meshplan.thumb.traffic import (
    Frequency,
    Placement,
    communication_frequency,
    communications_per_step,
    gradient_traffic_bytes,
    place,
    placement_order,
)

__all__ = [
    "BYTES_PER_PARAM",
    "Bottleneck",
    "Candidate",
    "Degrees",
    "Diagnosis",
    "Dimension",
    "Finding",
    "Frequency",
    "Placement",
    "SizeTier",
    "Strategy",
    "bubble_fraction",
    "column_parallel",
    "column_shards",
    "communication_frequency",
    "communication_score",
    "communications_per_step",
    "diagnose",
    "dimension_for",
    "efficiency",
    "estimate_memory_gb",
    "find_bottlenecks",
    "gradient_traffic_bytes",
    "ideal_speedup",
    "imbalance",
    "list_candidates",
    "medium_limit_b",
    "micro_batches_for_bubble",
    "pace",
    "place",
    "placement_order",
    "real_speedup",
    "recommend",
    "row_parallel",
    "row_shards",
    "size_tier",
    "solve_degrees",
    "strategy_for",
]
