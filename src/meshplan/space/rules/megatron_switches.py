"""What Megatron-LM asks of a plan when a switch of the variant is on.

Without the switch all of these hold. See ``settings`` of ``inputs/presets/profiles.yaml`` for what
each switch changes.
"""

from __future__ import annotations

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import Framework, Offload, Recompute
from meshplan.space.rules.predicates import equals, holds_for
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["MEGATRON_SWITCH_RULES"]

_rule = RuleMaker(Framework.MEGATRON, "Megatron-LM core 0.20.0 (d98e8a64)")

_ARGUMENTS = "megatron/training/arguments.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
_USER_BUFFERS = "TE transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp"
_EXCHANGE = f"{_CONFIG}:3002-3075: overlap_moe_expert_parallel_comm"


def _off(facts: Facts, switch: str) -> np.bool_:
    return np.bool_(switch not in facts.options)


def _fp8_weights_need_fp8(facts: Facts) -> bool:
    return bool(_off(facts, "fp8-weights")) or facts.precision in ("fp8", "mxfp8")


def _fp8_weights_are_sharded(facts: Facts, plan: Fields) -> Legal:
    """The optimizer that keeps weights in 8 bits is the distributed one."""
    return _off(facts, "fp8-weights") | (plan.zero > 0)


def _offloaded_fp8_weights_are_delayed(facts: Facts, plan: Fields) -> Legal:
    """Weights that come back from the host are cast with scales of earlier steps alone."""
    kept = equals(plan.offload & int(Offload.OPTIMIZER), 0)
    return _off(facts, "fp8-weights") | np.bool_(facts.delayed_scaling) | kept


def _tensor_overlap_needs_sp(facts: Facts, plan: Fields) -> Legal:
    """It cuts gathers and reduce-scatters of split sequences into pieces."""
    return _off(facts, "tp-overlap") | ((plan.tp > 1) & (plan.sp > 0))


def _tensor_overlap_stays_inside(facts: Facts, plan: Fields) -> Legal:
    """Each device writes into buffers of the others, which only shared memory allows."""
    return _off(facts, "tp-overlap") | (plan.tp <= facts.joined_gpus)


def _overlapped_exchange_needs_experts(facts: Facts) -> bool:
    return bool(_off(facts, "overlapped-exchange")) or facts.is_moe


def _overlapped_exchange_needs_ep(facts: Facts, plan: Fields) -> Legal:
    return _off(facts, "overlapped-exchange") | (plan.ep > 1)


def _overlapped_exchange_takes_one_mtp(facts: Facts) -> bool:
    return bool(_off(facts, "overlapped-exchange")) or facts.num_mtp_layers <= 1


def _overlapped_exchange_interleaves(facts: Facts, plan: Fields) -> Legal:
    """The forward pass that runs beside a backward pass is of another chunk."""
    return _off(facts, "overlapped-exchange") | equals(plan.pp, 1) | (plan.vpp > 1)


def _overlapped_exchange_keeps_experts(facts: Facts, plan: Fields) -> Legal:
    """Recomputed experts would exchange their tokens once more, beside nothing."""
    again = plan.recompute & int(Recompute.FULL | Recompute.MOE)
    return _off(facts, "overlapped-exchange") | equals(again, 0)


MEGATRON_SWITCH_RULES = (
    _rule(
        "fp8_weights_need_fp8",
        axis="framework",
        reads="",
        legal=holds_for(_fp8_weights_need_fp8),
        source=f"{_CONFIG}:1566: fp8_param",
        numbers="precision",
    ),
    _rule(
        "fp8_weights_are_sharded",
        axis="zero",
        reads="zero",
        legal=_fp8_weights_are_sharded,
        source=f"{_ARGUMENTS}:1095: --fp8-param-gather",
    ),
    _rule(
        "offloaded_fp8_weights_are_delayed",
        axis="offload",
        reads="offload",
        legal=_offloaded_fp8_weights_are_delayed,
        source=f"{_ARGUMENTS}:1889: --optimizer-cpu-offload with --fp8-param-gather",
    ),
    _rule(
        "overlapped_exchange_takes_one_mtp",
        axis="framework",
        reads="",
        legal=holds_for(_overlapped_exchange_takes_one_mtp),
        source=f"{_CONFIG}:3042",
        numbers="num_mtp_layers",
    ),
    _rule(
        "tensor_overlap_needs_sp",
        axis="sp",
        reads="tp sp",
        legal=_tensor_overlap_needs_sp,
        source=f"{_ARGUMENTS}:1441: --tp-comm-overlap",
    ),
    _rule(
        "tensor_overlap_stays_inside",
        axis="tp",
        reads="tp",
        legal=_tensor_overlap_stays_inside,
        source=f"{_USER_BUFFERS}:245, 664, 690 (run time)",
        numbers="joined_gpus",
    ),
    _rule(
        "overlapped_exchange_needs_experts",
        axis="framework",
        reads="",
        legal=holds_for(_overlapped_exchange_needs_experts),
        source=_EXCHANGE,
    ),
    _rule(
        "overlapped_exchange_needs_ep",
        axis="ep",
        reads="ep",
        legal=_overlapped_exchange_needs_ep,
        source=_EXCHANGE,
    ),
    _rule(
        "overlapped_exchange_interleaves",
        axis="vpp",
        reads="pp vpp",
        legal=_overlapped_exchange_interleaves,
        source=_EXCHANGE,
    ),
    _rule(
        "overlapped_exchange_keeps_experts",
        axis="recompute",
        reads="recompute",
        legal=_overlapped_exchange_keeps_experts,
        source=_EXCHANGE,
    ),
)
