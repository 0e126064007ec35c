"""Legal and illegal plans of many models and sizes, written down as each target would."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from meshplan.emit import accelerate, bridge, deepspeed, maxtext, megatron, nanotron, torchtitan
from meshplan.emit.records import Order
from meshplan.emit.targets import TARGETS, obstacles_of
from meshplan.inputs.job import Job, Precision
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import Attention, LatentAttention, Mlp, Model, Moe
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Offload, Plan, Recompute, Schedule, Split
from meshplan.space.rules import check_plan

__all__ = ["MODELS", "Case", "cases_of", "example_cases", "payload"]

MODELS = {
    "megatron": (
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "gpt3-175b",
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "qwen2.5-72b",
        "deepseek-v3",
        "deepseek-v2-lite",
        "mistral-7b",
        "gpt2-xl",
        "nemotron-h-8b",
        "nemotron-3-nano-30b-a3b",
        "qwen3-next-80b-a3b",
        "gpt-oss-20b",
    ),
    "torchtitan": (
        "llama-3.2-1b",
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "qwen3-0.6b",
        "qwen3-8b",
        "qwen3-32b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "deepseek-v2-lite",
        "llama-2-7b",
        "yi-34b",
    ),
}
_TRANSFORMERS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "mistral-7b",
    "mixtral-8x7b",
    "qwen2.5-7b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gemma-2-9b",
    "phi-4",
    "olmo-2-7b",
    "starcoder2-7b",
)
MODELS["nanotron"] = (
    "llama-2-7b",
    "llama-2-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.2-1b",
    "mistral-7b",
    "mixtral-8x7b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen2.5-72b",
    "tinyllama-1.1b",
    "yi-34b",
)
MODELS["maxtext"] = (
    "llama-2-7b",
    "llama-2-70b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "mistral-7b",
    "mixtral-8x7b",
    "gemma-2-9b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
)
# the hybrids of Megatron-Bridge bring their own layers
MODELS["bridge"] = MODELS["megatron"][:12]
MODELS |= {"deepspeed": _TRANSFORMERS, "accelerate": _TRANSFORMERS}
_SIZES = (1, 2, 8, 12, 16, 24, 32, 48, 64, 128, 256, 1024, 4096, 16384)
_TWO_CHUNKS = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ZBV, Schedule.DUALPIPE_V)
_RECOMPUTE = {
    Framework.MEGATRON: (
        Recompute.NONE,
        Recompute.CORE_ATTENTION,
        Recompute.FULL,
        Recompute.NORM | Recompute.MLP,
    ),
    Framework.TORCHTITAN: (Recompute.NONE, Recompute.SELECTIVE_OP, Recompute.FULL),
    Framework.DEEPSPEED: (Recompute.NONE, Recompute.FULL),
    Framework.ACCELERATE: (Recompute.NONE, Recompute.FULL),
    Framework.NANOTRON: (Recompute.NONE, Recompute.FULL),
}


# What is written for them is read by the validators too.
_VARIANTS = {
    "megatron": (
        "",
        "megatron+bf16-gradients",
        "megatron+flex",
        "megatron+graph-attention",
        "megatron+overlapped-exchange",
    ),
    "torchtitan": ("", "torchtitan-eager"),
}
_BF16: tuple[Precision, ...] = ("bf16",) * 4
_PRECISIONS: dict[str, tuple[Precision, ...]] = {
    "accelerate": ("bf16", "bf16", "fp16", "fp8"),
    "deepspeed": ("bf16", "bf16", "bf16", "fp16"),
    "torchtitan": ("bf16", "bf16", "fp8", "mxfp8"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan with our verdict.

    Attributes:
        name: what it is, for people.
        target: the config format.
        rules: codes of the rules that it breaks; empty when it is legal.
        payload: what its validator reads; None when the target cannot write the plan down.
    """

    name: str
    target: str
    rules: tuple[str, ...]
    payload: dict[str, Any] | None


def cases_of(target: str, *, legal: int, illegal: int, seed: int = 0) -> list[Case]:
    """Random plans, as many legal and illegal ones as wanted, over all models and sizes."""
    found: dict[bool, list[Case]] = {True: [], False: []}
    wanted = {True: legal, False: illegal}
    for case in _random_cases(target, random.Random(seed)):
        kind = not case.rules
        if case.payload is not None and len(found[kind]) < wanted[kind]:
            found[kind].append(case)
        if all(len(found[k]) >= wanted[k] for k in wanted):
            break
    return found[True] + found[False]


def _random_cases(target: str, dice: random.Random) -> Iterator[Case]:
    framework = TARGETS[target].framework
    for number in range(100_000):
        # in turn, so that every model is there in every size
        name = MODELS[target][number % len(MODELS[target])]
        num_gpus = _SIZES[number // len(MODELS[target]) % len(_SIZES)]
        there = Scenario(
            model=load_model(name),
            cluster=parse_cluster(f"{num_gpus}xH100"),
            job=Job(
                seq_len=dice.choice((2048, 4096, 8192)),
                global_batch=dice.choice((1, 2, 4)) * max(64, num_gpus),
                precision=_PRECISIONS.get(target, _BF16)[number % 4],
                **_adapters(target, name, number),
            ),
            frameworks=(framework.name.lower(),),
            variant=_VARIANTS.get(target, ("",))[number % 5 % len(_VARIANTS.get(target, ("",)))],
        )
        given = _said(target, _degrees(there, framework, dice))
        plan = complete_plan(there, framework=framework, **given)
        yield case_of(target, there, plan, name=f"{name} on {num_gpus}")


def _adapters(target: str, name: str, number: int) -> dict[str, Any]:
    """Adapters in some cases of the targets whose validator reads them."""
    if target != "torchtitan" or number % 5:
        return {}
    targets = "attention" if load_model(name).is_moe else ("all", "mlp", "attention")[number % 3]
    return {"task": "lora", "lora_rank": 16, "lora_targets": targets}


def _said(target: str, given: dict[str, Any]) -> dict[str, Any]:
    """A plan in the schedule and the sharding that MaxText has words for, where that is asked."""
    if target == "maxtext":
        if given.get("pp", 1) > 1:
            given = {
                "zero": 3,
                **({} if given.get("vpp", 1) > 1 else {"schedule": Schedule.GPIPE}),
                **given,
            }
        if given.get("zero") in (1, 2):
            given = {**given, "zero": 3}
    return given


def _degrees(there: Scenario, framework: Framework, dice: random.Random) -> dict[str, Any]:
    one = (1,) * 4
    given: dict[str, Any] = {
        "tp": dice.choice((*one, 2, 4, 8, 3, 16)),
        "pp": dice.choice((*one, 2, 4, 8, 5)),
        "cp": dice.choice((*one, 2, 4, 3)),
        "micro_batch": dice.choice((1, 1, 2, 4, 3)),
        "recompute": dice.choice(_RECOMPUTE[framework]),
        "zero": dice.choice((0, 1, 2, 3, 3)),
    }
    if there.model.is_moe:
        given["ep"] = dice.choice((1, 2, 4, 8, 16, 6))
    if framework is Framework.ACCELERATE:
        given["pp"] = 1
        given["cp_comm"] = dice.choice(tuple(CpComm)) if given["cp"] > 1 else CpComm.P2P
    if framework is Framework.NANOTRON:
        given["zero"] = dice.choice((0, 1, 1, 3))
        given["ep"] = 1
    if framework is Framework.DEEPSPEED:
        given["pp"] = 1
        given["offload"] = dice.choice((Offload.NONE, Offload.NONE, Offload.OPTIMIZER))
    if framework is Framework.MEGATRON:
        given["zero"] = dice.choice((0, 1, 1, 3))
        given["split"] = dice.choice((Split.EVEN, Split.EVEN, Split.BALANCED))
    if given["pp"] > 1 and framework in (Framework.MEGATRON, Framework.TORCHTITAN):
        given["vpp"] = dice.choice((1, 1, 2, 4))
        if given["vpp"] == 1 and framework is Framework.TORCHTITAN:
            given["schedule"] = dice.choice((Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1))
        if given["vpp"] == 2 and framework is Framework.TORCHTITAN:
            given["schedule"] = dice.choice(_TWO_CHUNKS)
    if given["zero"] and dice.random() < 0.15:
        given["dp_replicate"] = 2
    return given


def case_of(target: str, there: Scenario, plan: Plan, *, name: str) -> Case:
    """A plan with our verdict, written down if the target can."""
    rules = tuple(v.code for v in check_plan(there, plan))
    if target == "accelerate" and plan.cp > 1 and plan.cp_comm is CpComm.ALL_TO_ALL:
        # another backend, with other checks
        rules = tuple(f"{rule}:ulysses" for rule in rules)
    order = Order(scenario=there, plan=plan, notes=(name,))
    return Case(
        name=f"{name} {_short(plan)}",
        target=target,
        rules=rules,
        payload=None if obstacles_of(order, TARGETS[target]) else payload(target, order),
    )


def _short(plan: Plan) -> str:
    axes = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_replicate", "micro_batch")
    parts = [f"{axis}{getattr(plan, axis)}" for axis in axes if getattr(plan, axis) > 1]
    return " ".join([*parts, f"zero{plan.zero}", f"m{plan.num_micro_batches}"])


def example_cases(target: str, examples: dict[Any, Any]) -> Iterator[tuple[str, Case]]:
    """One plan for each rule of the target's framework, with the rule that it is for."""
    framework = TARGETS[target].framework
    for (owner, code), (there, given) in examples.items():
        if owner not in (None, framework):
            continue
        try:
            plan = complete_plan(there, framework=framework, **_said(target, dict(given)))
        except (KeyError, ValueError):
            continue
        there = replace(there, model=_nameable(target, there.model))
        case = case_of(target, there, plan, name=f"example of {code}")
        broken = [rule for rule in case.rules if rule.split(":")[0] == code]
        if broken:
            yield broken[0], case


def _nameable(target: str, model: Model) -> Model:
    """Give a test model what the target needs to write it down, and what no rule reads.

    DeepSpeed spreads the experts of families that it knows; torchtitan builds heads of any width
    and experts in blocks with norms on queries and keys; MaxText takes all sizes from a name.
    """
    if target == "maxtext":
        return replace(model, name="mixtral-8x7b" if model.is_moe else "llama-3.1-8b")
    if target == "deepspeed" and model.is_moe:
        return replace(model, family="mixtral")
    if target == "torchtitan" and all(isinstance(x.mixer, Attention) for x in model.layers):
        normed = [replace(x, mixer=replace(x.mixer, qk_norm="head")) for x in model.layers]
        return replace(model, layers=tuple(normed))
    return model


# Of the first devices that have the number format.
_CAPABILITIES = {"mxfp8": (10, 0)}
_YAML = {"accelerate": accelerate, "maxtext": maxtext, "nanotron": nanotron}


def payload(target: str, order: Order) -> dict[str, Any] | None:
    """What the validator of a target reads; None where the plan has no layout to write."""
    world = order.scenario.cluster.num_gpus
    try:
        program = TARGETS[target].program(order)
        if target == "megatron":
            words = [w for flags in program.groups.values() for flag in flags for w in flag]
            words += [w for flag in program.trial for w in flag]
            return {"world": world, "argv": words, "environment": dict(program.environment)}
        if target == "bridge":
            return {
                "world": world,
                "model": _provider(order.scenario.model),
                "overrides": bridge.overrides(order),
                "environment": megatron.environment(order),
            }
        if target == "torchtitan":
            return {
                "world": world,
                "module": torchtitan.source(order),
                "table": torchtitan.schedule_table(order.plan),
                "capability": _CAPABILITIES.get(order.scenario.job.precision, (9, 0)),
            }
        if target == "deepspeed":
            return {
                "world": world,
                "config": deepspeed.config(order),
                "written": deepspeed.written(order),
                "arguments": {w[0]: w[-1] for w in program.groups["TRAINING"]},
                "heads": _heads(order),
            }
        text = yaml.safe_dump(_YAML[target].config(order))
        return {"world": world, "yaml": text, "batch": order.scenario.job.global_batch}
    except AssertionError:
        return None


def _provider(model: Model) -> dict[str, Any]:
    """Sizes of a model as fields of Megatron-Bridge's model providers."""
    mixer = model.layers[0].mixer
    dense = next((x.ffn for x in model.layers if isinstance(x.ffn, Mlp)), None)
    moe = next((x.ffn for x in model.layers if isinstance(x.ffn, Moe)), None)
    fields: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "position_embedding_type": "learned_absolute" if model.num_positions else "rope",
        "share_embeddings_and_output_weights": model.tied_embeddings,
    }
    if isinstance(mixer, LatentAttention):
        fields |= {
            "num_attention_heads": mixer.num_heads,
            "multi_latent_attention": True,
            "q_lora_rank": mixer.q_lora_rank,
            "kv_lora_rank": mixer.kv_lora_rank,
            "qk_head_dim": mixer.qk_nope_head_dim,
            "qk_pos_emb_head_dim": mixer.qk_rope_head_dim,
            "v_head_dim": mixer.v_head_dim,
        }
    elif isinstance(mixer, Attention):
        fields |= {
            "num_attention_heads": mixer.num_heads,
            "num_query_groups": mixer.num_kv_heads,
            "kv_channels": mixer.head_dim,
            "add_qkv_bias": mixer.qkv_bias,
            "qk_layernorm": mixer.qk_norm == "head",
        }
    any_ffn = dense or moe
    if any_ffn is not None:
        fields |= {"gated_linear_unit": any_ffn.gated, "add_bias_linear": any_ffn.bias}
        fields["ffn_hidden_size"] = dense.ffn_hidden if dense else moe.expert_ffn_hidden
    if moe is not None:
        fields |= {
            "num_moe_experts": moe.num_experts,
            "moe_router_topk": moe.top_k,
            "moe_ffn_hidden_size": moe.expert_ffn_hidden,
            "moe_token_dispatcher_type": "alltoall",
            "moe_grouped_gemm": True,
            "moe_layer_freq": [int(isinstance(x.ffn, Moe)) for x in model.layers],
        }
        if moe.shared_ffn_hidden:
            fields["moe_shared_expert_intermediate_size"] = moe.shared_ffn_hidden
    if model.mtp_layers:
        fields["mtp_num_layers"] = len(model.mtp_layers)
    return fields


def _heads(order: Order) -> tuple[int, int, int]:
    mixer = order.scenario.model.layers[0].mixer
    if isinstance(mixer, Attention):
        return mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    if isinstance(mixer, LatentAttention):
        return mixer.num_heads, mixer.num_heads, mixer.qk_nope_head_dim
    return 64, 64, 64  # no attention, so that nothing of it is checked
