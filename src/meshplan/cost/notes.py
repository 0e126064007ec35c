"""What the time model had to assume for a device, as codes for the answer."""

from __future__ import annotations

from meshplan.cost.behaviour import leaves_vocabulary
from meshplan.cost.kernels import slows_odd_heads, slows_odd_vocabularies
from meshplan.cost.operators.records import ALIGNED
from meshplan.cost.surfaces import collective_table_of, gemm_surface, scan_table_of, table_of
from meshplan.inputs.model import (
    Attention,
    CrossAttention,
    GatedRecurrence,
    LatentAttention,
    LinearAttention,
    Mixer,
    ShortConv,
    StateSpace,
)
from meshplan.inputs.scenario import Scenario

__all__ = ["time_assumptions"]

USUAL_TP = 8
"""Largest tensor-parallel degree of usual plans, over which a vocabulary is split."""


def time_assumptions(scenario: Scenario) -> tuple[tuple[str, str], ...]:
    """List where measurements of another device stand in, and kernels that run unlike the tables.

    Returns:
        ``(code, value)`` pairs; the sentences are ``assumed.<code>``.
    """
    device, notes = scenario.cluster.device, []
    table, derived = table_of(device)
    if derived:
        notes.append(("kernels_of_sibling", table))
    elif gemm_surface(device, scenario.job.precision).derived:
        notes.append(("kernels_of_other_precision", scenario.job.precision))
    if not derived and _walks_along_sequences(scenario) and scan_table_of(device) is not None:
        notes.append(("scans_of_sibling", str(scan_table_of(device))))
    if (width := _unaligned_width(scenario)) is not None:
        notes.append(("unaligned_heads", str(width)))
    split = min(scenario.cluster.gpus_per_node, USUAL_TP)
    if slows_odd_vocabularies(device) and leaves_vocabulary(scenario, multiple=ALIGNED * split):
        notes.append(("unaligned_vocabulary", str(scenario.model.vocab)))
    for tier in scenario.cluster.tiers:
        stands_in = collective_table_of(device, tier)
        if stands_in is not None:
            notes.append(("collectives_of_sibling", stands_in))
            break
    return tuple(notes)


def _unaligned_width(scenario: Scenario) -> int | None:
    """Width of heads whose stored scores are computed as without the matrix units, if any."""
    if scenario.job.attention != "unfused" or not slows_odd_heads(scenario.cluster.device):
        return None
    mixers = (mixer for layer in scenario.model.layer_kinds for mixer in layer.mixers)
    widths = (width for mixer in mixers for width in _widths_of_heads(mixer))
    return next((width for width in widths if width % ALIGNED), None)


def _widths_of_heads(mixer: Mixer) -> tuple[int, ...]:
    """Widths of keys and values of a head, of mixers that may store scores."""
    match mixer:
        case Attention():
            return mixer.head_dim, mixer.v_head_dim
        case LatentAttention():
            return mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.v_head_dim
        case CrossAttention():
            return (mixer.head_dim,)
        case _:
            return ()


def _walks_along_sequences(scenario: Scenario) -> bool:
    """Whether the model has recurrences or short convolutions."""
    kinds = (StateSpace, LinearAttention, ShortConv, GatedRecurrence)
    layers = scenario.model.layer_kinds
    return any(isinstance(mixer, kinds) for layer in layers for mixer in layer.mixers)
