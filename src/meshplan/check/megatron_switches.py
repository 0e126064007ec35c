"""Options of Megatron-LM that change what times and memory count on, as settings of a variant.

References:
    1. ``megatron/training/arguments.py`` of megatron-core 0.19.2.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from meshplan.check.options import Option

__all__ = ["SWITCHES", "UNCOUNTED_MODULES", "offloaded_part", "switches_of", "uncounted_of"]

SWITCHES = (
    "bf16-gradients",
    "fp8-weights",
    "fused-loss",
    "alltoall",
    "flex",
    "tensorwise",
    "delayed",
    "blockwise",
    "tp-overlap",
    "overlapped-exchange",
    "graph-attention",
    "graph-router",
    "graph-layer",
)
"""Settings of a variant that options stand for (``inputs/presets/profiles.yaml``)."""
_FLAGS = {
    "grad-reduce-in-bf16": "bf16-gradients",
    "fp8-param-gather": "fp8-weights",
    "cross-entropy-loss-fusion": "fused-loss",
    "overlap-moe-expert-parallel-comm": "overlapped-exchange",
    "moe-enable-deepep": "flex",
    "tp-comm-overlap": "tp-overlap",
}
_VALUES = {
    "moe-token-dispatcher-type": ("alltoall", "flex"),
    "fp8-recipe": ("tensorwise", "delayed", "blockwise"),
}
# A loss that the compiler fuses, parts of a layer on the host: no plan says these, and each saves
# memory.
UNCOUNTED_MODULES = ("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
"""Modules to recompute that no plan says (transformer_config.py:1943 at d98e8a64)."""
_SAVES = {"cross-entropy-loss-fusion": "fused-loss", "fine-grained-activation-offloading": ""}


def switches_of(present: Mapping[str, Option]) -> dict[str, Option]:
    """Settings that options lead to, each with its option."""
    fusion = present.get("cross-entropy-fusion-impl")
    # some are without effect beside others (reference 1)
    without_effect = {
        # FSDP2 gathers 16 bits all the same
        "fp8-param-gather": "use-torch-fsdp2" in present,
        "grad-reduce-in-bf16": "bf16" not in present,
        "cross-entropy-loss-fusion": fusion is None or fusion.value != "te",
    }
    found = {
        switch: present[name]
        for name, switch in _FLAGS.items()
        if name in present and not without_effect.get(name)
    }
    for name, values in _VALUES.items():
        option = present.get(name)
        if option is not None and option.value in values:
            found[option.value] = option
    if "fp16" in present and "accumulate-allreduce-grads-in-fp32" not in present:
        # widened by itself for bf16 alone (arguments.py:1172-1194), so that gradients are
        # accumulated and reduced as wide as weights (param_and_grad_buffer.py:917)
        found["bf16-gradients"] = present["fp16"]
    return found | dict(_graphs(present))


def _graphs(present: Mapping[str, Option]) -> Iterator[tuple[str, Option]]:
    """What CUDA graphs launch; whole layers where no module is named."""
    kind = present.get("cuda-graph-impl")
    on = kind if kind is not None and kind.value != "none" else None
    on = on or present.get("enable-cuda-graph") or present.get("external-cuda-graph")
    if on is None:
        return
    named = present.get("cuda-graph-modules") or present.get("cuda-graph-scope")
    modules = set(named.values) if named is not None else set()
    if not modules - {"full", "full_iteration"}:
        # layers with experts that drop no token have no fixed shapes
        if "num-experts" not in present:
            yield "graph-layer", on
    elif named is not None:
        for module, switch in (("attn", "graph-attention"), ("moe_router", "graph-router")):
            if module in modules:
                yield switch, named


def uncounted_of(present: Mapping[str, Option], settings: Container[str]) -> tuple[str, ...]:
    """Options that save memory which no plan counts."""
    options = [n for n, switch in _SAVES.items() if n in present and switch not in settings]
    modules = present.get("recompute-modules")
    named = [m for m in UNCOUNTED_MODULES if modules is not None and m in modules.values]
    return tuple([*(f"--{n}" for n in options), *(f"--recompute-modules {m}" for m in named)])


def offloaded_part(present: Mapping[str, Option]) -> tuple[float, Option] | None:
    """The share of the optimizer that is on the host, where a part is."""
    option = present.get("optimizer-offload-fraction")
    try:
        share = float(option.value) if option is not None else 1.0
    except ValueError:
        return None
    return (share, option) if option is not None and 0.0 <= share < 1.0 else None
