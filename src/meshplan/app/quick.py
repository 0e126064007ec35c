"""The rule of thumb beside the full model's answer, and why they differ.

The rule knows a size and a number of GPUs. For the full model a decoder of Llama's proportions
stands in for the size; what it trains on is a stated job. The full model answers twice: for the
best plan of all, and for the best plan with the degrees that the rule recommends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan import thumb
from meshplan.app import service
from meshplan.app.document import document
from meshplan.cost.parameters import count_parameters
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.cluster import Device
from meshplan.inputs.load.bounds import bounded
from meshplan.inputs.load.fields import TEXT, Field, count, number, read_fields
from meshplan.inputs.load.hf_config import model_from_config
from meshplan.inputs.load.presets import load_device
from meshplan.units import GB, GIB

__all__ = ["llama_config", "quick"]

Json = dict[str, Any]

_FIELDS = (
    Field(name="num_params_b", kind=number(most=1e5), required=True),
    Field(name="num_gpus", kind=count(most=10**6), required=True),
    Field(name="gpu_memory_gb", kind=bounded(number(), "device_memory", unit=GIB)),
    Field(name="device", kind=TEXT),
)
_DEVICE = "H100"
_SEQ_LEN, _TOKENS_PER_STEP = 4096, 4 * 2**20
_FRAMEWORKS = ("megatron", "torchtitan")
_BF16_BYTES = 2

# Llama 3: a key-value head for every eighth query head of 128, a feed-forward network 3.5 times as
# wide as the residual stream, 128,256 tokens; hidden width over layers is 100 to 130.
_HEAD_DIM, _NUM_KV_HEADS, _FFN_RATIO, _VOCAB, _ASPECT = 128, 8, 3.5, 128_256, 102.4


def quick(request: Mapping[str, Any]) -> Json:
    """Answer by rule of thumb and by the full model.

    Args:
        request: ``num_params_b`` [1e9], ``num_gpus``, ``device`` and ``gpu_memory_gb``, what the
            label of a device says, to rule and model alike; by default the device's own.

    Raises:
        UserError: with all that is wrong; also when the rule finds no degrees.
    """
    problems = ProblemList()
    given = read_fields(request, _FIELDS, where="", problems=problems)
    problems.raise_if_any()
    device = load_device(given.get("device", _DEVICE), where="device")
    memory_gb = given.get("gpu_memory_gb", round(device.memory_bytes / GIB))
    num_params_b, num_gpus = given["num_params_b"], given["num_gpus"]
    config = llama_config(num_params_b=num_params_b)
    asked: Json = {
        "model": {"config": config, "name": f"llama-shaped-{num_params_b:g}b"},
        "cluster": _cluster(num_gpus, device, given.get("gpu_memory_gb")),
        "job": {
            "seq_len": _SEQ_LEN,
            "global_batch": _batch(num_gpus),
            "precision": "bf16" if "bf16" in device.peak_flop_per_s else "fp16",
        },
        "frameworks": list(_FRAMEWORKS),
    }
    full = service.plan({**asked, "top": 1})
    best = full["plans"][0] if full["plans"] else None
    rule = _rule(num_params_b=num_params_b, num_gpus=num_gpus, gpu_memory_gb=memory_gb)
    same = _same_degrees(asked, rule["degrees"]) if rule["degrees"] else None
    head = document("quick")
    return {
        **head,
        "given": {
            "num_params_b": num_params_b,
            "num_gpus": num_gpus,
            "gpu_memory_gb": memory_gb,
            "device": device.name,
        },
        "stand_in": {**_shape(config), **asked["job"]},
        "rule": rule,
        "plans": [best] if best else [],
        "more_gpus": next((r["after"] for r in full["remedies"] if r["kind"] == "num_gpus"), None),
        "rule_plan": same,
        "beside": _beside(rule, best, same),
        "differences": _differences(rule, best, same),
    }


def _batch(num_gpus: int) -> int:
    """About so many tokens a step, in sequences that every number of replicas can share."""
    return num_gpus * max(1, round(_TOKENS_PER_STEP / _SEQ_LEN / num_gpus))


def _cluster(num_gpus: int, device: Device, gpu_memory_gb: float | None) -> Json | str:
    """The cluster to plan for: devices of that kind, with another memory where one is stated."""
    label_gb = round(device.memory_bytes / GIB)
    if gpu_memory_gb is None or gpu_memory_gb == label_gb:
        return f"{num_gpus}x{device.name}"
    kept_gb = (device.memory_bytes - device.usable_bytes) / GIB
    if gpu_memory_gb <= kept_gb:
        raise UserError.of(
            "no_memory_left", where="gpu_memory_gb", value=gpu_memory_gb, kept_bytes=kept_gb * GIB
        )
    return {"base": f"{num_gpus}x{device.name}", "device": {"memory": f"{gpu_memory_gb:g} GiB"}}


def llama_config(*, num_params_b: float) -> Json:
    """Make the config of a decoder with Llama 3's proportions and about so many parameters.

    ``hidden`` solves ``P = L (12.5 h^2 + 2 * 1024 h) + 2 V h`` with ``L = h / 102.4``, rounded to a
    multiple of 1,024 so that heads divide over tensor parallelism (256 below 1,400); the layers
    then take what is left, at least one.

    Args:
        num_params_b: parameters [1e9].
    """
    target = num_params_b * 1e9
    low, high = float(_HEAD_DIM), 2.0**20
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _params(middle, middle / _ASPECT) < target else (low, middle)
    step = 1024 if low >= 1400 else 256
    hidden = max(step, round(low / step) * step)
    tied = target < 4 * _VOCAB * hidden
    head = _VOCAB * hidden * (1 if tied else 2)
    layers = max(1.0, (target - head) / _params_of_layer(hidden))
    # whole groups of four divide over pipelines
    num_layers = round(layers / 4) * 4 if layers >= 16 else round(layers)
    num_heads = hidden // _HEAD_DIM
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": max(1, num_layers),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _NUM_KV_HEADS if num_heads % _NUM_KV_HEADS == 0 else num_heads,
        "head_dim": _HEAD_DIM,
        "intermediate_size": int(_FFN_RATIO * hidden),
        "vocab_size": _VOCAB,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 131_072,
    }


def _params_of_layer(hidden: float) -> float:
    kv = 2 * _NUM_KV_HEADS * _HEAD_DIM * hidden
    return 2 * hidden**2 + kv + 3 * _FFN_RATIO * hidden**2


def _params(hidden: float, layers: float) -> float:
    return layers * _params_of_layer(hidden) + 2 * _VOCAB * hidden


def _shape(config: Json) -> Json:
    """What the stand-in looks like, and how many parameters it really has."""
    model = model_from_config(config, name="stand-in")
    return {
        "num_params": count_parameters(model).total,
        "num_layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "num_heads": config["num_attention_heads"],
    }


def _rule(*, num_params_b: float, num_gpus: int, gpu_memory_gb: float) -> Json:
    """Everything that the rules of thumb say."""
    tier = thumb.size_tier(num_params_b=num_params_b, gpu_memory_gb=gpu_memory_gb)
    asked: Json = {
        "num_params_b": num_params_b,
        "num_gpus": num_gpus,
        "gpu_memory_gb": gpu_memory_gb,
    }
    found: Json = {
        "tier": tier.value,
        "strategy": thumb.strategy_for(tier).value,
        "bytes_per_param": thumb.BYTES_PER_PARAM,
        "gradient_bytes": thumb.gradient_traffic_bytes(model_bytes=num_params_b * GB * _BF16_BYTES),
        "candidates": [
            {
                "degrees": dict(candidate.degrees),
                "memory_gb": candidate.memory_gb,
                "score": candidate.score,
                "fits": candidate.fits,
            }
            for candidate in thumb.list_candidates(**asked)
        ],
        "degrees": None,
    }
    try:
        degrees = thumb.recommend(**asked)
    except UserError as error:
        (problem,) = error.problems
        return {**found, "problem": {"code": problem.code, "numbers": dict(problem.numbers)}}
    tp, pp, dp = degrees.tp, degrees.pp, degrees.dp
    return {
        **found,
        "degrees": dict(degrees),
        "memory_gb": thumb.estimate_memory_gb(num_params_b=num_params_b, tp=tp, pp=pp),
        "score": thumb.communication_score(tp=tp, pp=pp, dp=dp),
        "placement": [
            {
                "dimension": placed.dimension.value,
                "frequency": placed.frequency.value,
                "size": placed.size,
                "crosses_nodes": placed.crosses_nodes,
            }
            for placed in thumb.place(dp=dp, tp=tp, pp=pp)
        ],
    }


def _same_degrees(asked: Json, degrees: Mapping[str, int]) -> Json | None:
    """The best plan with the rule's degrees, plain data parallelism or ZeRO-1; None if none."""
    axes = {"tp": degrees["tp"], "pp": degrees["pp"], "cp": 1, "ep": 1, "zero": [0, 1]}
    try:
        found = service.plan({**asked, "frameworks": ["megatron"], "axes": axes, "top": 1})
    except UserError:
        return None
    return found["plans"][0] if found["plans"] else None


def _beside(rule: Json, best: Json | None, same: Json | None) -> list[Json]:
    """What each rule says of the rule's degrees, beside the full model's numbers.

    Returns:
        Rows of ``code``, ``unit``, and the values ``rule``, ``same`` (the full model, the rule's
        degrees) and ``best`` (the full model, its own plan); None where there is none.
    """
    degrees = rule["degrees"]
    rows: list[Json] = []

    def add(code: str, unit: str, by_rule: float | None, measure: Any) -> None:
        values = {"rule": by_rule, "same": same and measure(same), "best": best and measure(best)}
        rows.append({"code": code, "unit": unit, **values})

    memory = rule["memory_gb"] * GB if degrees else None
    add("memory", "bytes", memory, lambda entry: entry["memory"]["peak_bytes"])
    bubble = None
    if degrees and same:
        bubble = thumb.bubble_fraction(
            pp=degrees["pp"], num_micro_batches=same["plan"]["num_micro_batches"]
        )
    add("bubble", "1", bubble, lambda entry: entry["time"]["bubble_s"] / entry["step_time_s"])
    add("efficiency", "1", None, _efficiency)
    gpus = degrees and float(degrees["dp"] * degrees["tp"] * degrees["pp"])
    ideal = thumb.ideal_speedup(num_gpus=int(gpus)) if gpus else None
    add("speedup", "", ideal, _speedup)
    add("step_time", "s", None, lambda entry: entry["step_time_s"])
    add("mfu", "1", None, lambda entry: entry["mfu"])
    return rows


def _efficiency(entry: Json) -> float:
    """Computation over computation and the communication that nothing hides."""
    time = entry["time"]
    return thumb.efficiency(
        compute_time_s=time["compute_s"] + time["recompute_s"],
        communication_time_s=sum(value for part, value in time.items() if "_comm_" in part),
    )


def _speedup(entry: Json) -> float:
    """What the GPUs give, were one able to do the useful computation alone."""
    useful_s = entry["time"]["compute_s"]
    return thumb.real_speedup(
        num_gpus=entry["num_gpus"],
        compute_time_s=useful_s * entry["num_gpus"],
        communication_time_s=entry["step_time_s"] - useful_s,
    )


def _differences(rule: Json, best: Json | None, same: Json | None) -> list[Json]:
    """Why rule and model differ, as codes with numbers."""
    if not rule["degrees"] or not best:
        return []
    found: list[Json] = []

    def add(code: str, **numbers: object) -> None:
        found.append({"code": code, "numbers": numbers})

    plan, degrees = best["plan"], rule["degrees"]
    if plan["zero"] == 3:
        add("never_fsdp", pp=degrees["pp"], tp=degrees["tp"], dp_shard=plan["dp_shard"])
    elif plan["zero"] and plan["dp"] > 1:
        add("never_zero", zero=plan["zero"], dp=plan["dp"])
    if degrees["pp"] > plan["pp"]:
        add("into_a_pipeline", pp=degrees["pp"], best_pp=plan["pp"])
    if degrees["tp"] < plan["tp"]:
        add("shy_of_tp", tp=degrees["tp"], best_tp=plan["tp"])
    counted = rule["memory_gb"] * GB
    if same is None:
        add("degrees_do_not_fit", rule_bytes=counted, usable_bytes=best["memory"]["usable_bytes"])
        return found
    add("activations_uncounted", rule_bytes=counted, peak_bytes=same["memory"]["peak_bytes"])
    slower = same["step_time_s"] / best["step_time_s"] - 1.0
    if (plan["tp"], plan["pp"], plan["dp"]) == (degrees["tp"], degrees["pp"], degrees["dp"]):
        add("same_degrees", step_time_s=best["step_time_s"])
    else:
        add(
            "costs_time" if slower >= 0 else "gains_time",
            slower_fraction=abs(slower),
            rule_s=same["step_time_s"],
            best_s=best["step_time_s"],
        )
    return found
