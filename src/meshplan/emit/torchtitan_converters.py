"""What torchtitan changes a model with before it is built: 8-bit products and adapters.

References:
    1. ``torchtitan/components/quantization/{float8,mx}.py`` and ``components/lora.py`` of 0.3.0;
       quantization comes before adapters (``models/utils.py: validate_converter_order``).
    2. ``torchtitan/models/{llama3,deepseek_v3}/config_registry.py``: what large models leave in
       16 bits.
"""

from __future__ import annotations

from meshplan.emit.records import Obstacle
from meshplan.inputs.job import Job
from meshplan.inputs.model import Model
from meshplan.inputs.scenario import Scenario

__all__ = ["PRECISIONS", "TARGETS", "adapter_obstacles", "converters"]

PRECISIONS = ("bf16", "fp8", "mxfp8")
_QUANTIZATION = "torchtitan.components.quantization"
# Names of the linear layers of a block: one for queries, keys and values in most models, those of
# latent attention in DeepSeek's.
_ATTENTION = ("wqkv", "wo")
_LATENT = ("wq", "wq_a", "wq_b", "wkv_a", "wkv_b", "wo")
_NETWORK = ("w1", "w2", "w3")
TARGETS: dict[str, frozenset[str]] = {
    "attention": frozenset((*_ATTENTION, *_LATENT, "wk", "wv", "wkv")),
    "mlp": frozenset(_NETWORK),
}
"""Names of linear layers by part of a block, smallest first, for reading them again."""
TARGETS["all"] = TARGETS["attention"] | TARGETS["mlp"]


def adapter_obstacles(job: Job, model: Model) -> list[Obstacle]:
    """Where adapters would not be those that the plan counts."""
    if job.task == "lora" and model.is_moe and job.lora_targets != "attention":
        # routed experts are no linear layers (reference 1)
        return [Obstacle(code="adapters_on_experts", model=True)]
    return []


def converters(scenario: Scenario, package: str) -> tuple[list[str], list[str]]:
    """Imports, and expressions that make the configs of the converters, in their order.

    Args:
        scenario: model and job.
        package: package of torchtitan's models that the model is of.
    """
    job, moe = scenario.job, scenario.model.is_moe
    imports: list[str] = []
    made: list[str] = []
    if job.precision == "fp8":
        kept = ["lm_head", "router.gate"] if moe else ["lm_head"]
        made.append(f"Float8LinearConverter.Config(filter_fqns={_list(kept)}, {_COMPILED})")
        imports.append(f"from {_QUANTIZATION} import Float8LinearConverter")
        if moe:
            made.append(f"Float8GroupedExpertsConverter.Config({_COMPILED})")
            imports.append(f"from {_QUANTIZATION} import Float8GroupedExpertsConverter")
    elif job.precision == "mxfp8":
        parts = ["attention", "shared_experts", "feed_forward"] if moe else ["layers"]
        made.append(f"MXFP8LinearConverter.Config(fqns={_list(parts)}, {_COMPILED})")
        imports.append(f"from {_QUANTIZATION} import MXFP8LinearConverter")
        if moe:
            made.append(f"MXFP8GroupedExpertsConverter.Config(pad_multiple=128, {_COMPILED})")
            imports.append(f"from {_QUANTIZATION} import MXFP8GroupedExpertsConverter")
    if job.task == "lora":
        rank, names = job.lora_rank, _list(_adapted(job, package))
        # alpha is yours; twice the rank is a usual choice
        made.append(
            f"LoRAConverter.Config(rank={rank}, alpha={2.0 * rank}, target_modules={names})"
        )
        imports.append("from torchtitan.components.lora import LoRAConverter")
    return imports, made


_COMPILED = "model_compile_enabled=True"


def _adapted(job: Job, package: str) -> list[str]:
    attention = _LATENT if package == "deepseek_v3" else _ATTENTION
    parts = {"attention": attention, "mlp": _NETWORK, "all": (*attention, *_NETWORK)}
    return list(parts[job.lora_targets])


def _list(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
