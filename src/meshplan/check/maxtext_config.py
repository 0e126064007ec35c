"""What a config of MaxText says over the defaults of its base, as a plan, a job and a model.

References:
    1. ``maxtext/configs/base.yml`` and ``types.py`` of 0.2.5.
    2. ``maxtext/utils/max_utils.py``: axes of the mesh that are left open.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from meshplan.check.records import Reading, Setting
from meshplan.errors import ProblemList
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.model_presets import find_preset
from meshplan.inputs.load.presets import PRESETS, Loader
from meshplan.space.plan import CpComm, Recompute, Schedule

__all__ = ["AXES", "MAXTEXT", "MODEL", "Config", "preset"]

MAXTEXT = "maxtext"
_AXIS = re.compile(r"(?:ici|dcn)_(\w+)_parallelism")
# What each axis of the mesh is of a plan (reference 2); on all others there must be one device.
AXES = {
    "tensor": "tp",
    "tensor_sequence": "tp",
    "context": "cp",
    "pipeline": "pp",
    "expert": "ep",
    "fsdp": "shard",
    "fsdp_transpose": "shard",
    "data": "data",
}
MODEL = {
    "base_emb_dim": "hidden",
    "base_num_query_heads": "num_heads",
    "base_num_kv_heads": "num_kv_heads",
    "base_mlp_dim": "ffn_hidden",
    "base_num_decoder_layers": "num_layers",
    "head_dim": "head_dim",
    "vocab_size": "vocab",
    "num_experts": "num_experts",
    "num_experts_per_tok": "top_k",
}
_FIXED = {"gated": True, "bias": False, "norm": "RMSNorm", "positions": "rope"}
_DECODERS = ("llama2", "mistral", "mixtral", "default")
_COMM = {"all_gather": CpComm.ALL_GATHER, "ring": CpComm.P2P, "ulysses": CpComm.ALL_TO_ALL}
_REMAT = {
    "minimal_with_context": Recompute.NONE,
    "minimal": Recompute.SELECTIVE_OP,
    "full": Recompute.FULL,
}
# Policies that keep less than "minimal" and more than "full"; the nearest that a plan can say.
_BETWEEN = {
    "save_dot_with_context_except_mlp": Recompute.SELECTIVE_OP,
    "save_dot_except_mlpwi": Recompute.SELECTIVE_OP,
    "save_dot_except_mlp": Recompute.SELECTIVE_OP,
    "minimal_offloaded": Recompute.SELECTIVE_OP,
    "save_qkv_proj": Recompute.FULL,
    "qkv_proj_offloaded": Recompute.FULL,
    "save_out_proj": Recompute.FULL,
    "custom": Recompute.FULL,
}
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw"}
_OFFLOADS = ("optimizer_memory_host_offload", "parameter_memory_host_offload")
# What matters where a pipeline or the sizes of a model are said by keys.
_SIZES = {*MODEL, *(f"num_{k}" for k in ("pipeline_microbatches", "pipeline_repeats"))}
_SIZES.add("num_layers_per_pipeline_stage")


@lru_cache(maxsize=1)
def preset() -> dict[str, Any]:
    """Names and defaults of the base."""
    content: dict[str, Any] = yaml.load((PRESETS / "maxtext.yaml").read_text("utf-8"), Loader)
    return {**content, "keys": frozenset(content["keys"].split())}


class Config:
    """Files over the defaults of ``base.yml``."""

    def __init__(self, reading: Reading, problems: ProblemList) -> None:
        self.problems = problems
        self.said = {
            name.removeprefix("maxtext."): setting
            for name, setting in reading.settings.items()
            if name.startswith("maxtext.")
        }
        self.defaults = tuple(
            f"{key}={value}"
            for key, (value, _) in preset()["defaults"].items()
            if key not in self.said and key not in _SIZES
        )
        for key, (value, source) in preset()["defaults"].items():
            self.said.setdefault(key, Setting(value=value, where=source, spelled="-", soft=True))

    def value(self, key: str, default: object = None) -> Any:
        """What a key says, or the default."""
        setting = self.said.get(key)
        return default if setting is None else setting.value

    def put(self, key: str, value: object) -> Setting:
        """A value of ours with the key it comes from."""
        return replace(self.said[key], value=value)

    def number(self, key: str, *, whole: bool = True, least: float = 1) -> Any:
        """A number that a key gives; None, with the reason noted, where it is none."""
        value = self.value(key)
        good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if good and math.isfinite(value) and least <= value < 1e12:
            return value
        self.problems.add(
            "check_not_a_count", where=self.said[key].where, value=str(value)[:40], option=key
        )
        return None

    def job(self) -> dict[str, Setting]:
        """Sequence length, number format and optimizer."""
        found = {}
        if (length := self.number("max_target_length")) is not None:
            found["seq_len"] = self.put("max_target_length", length)
        quantization = str(self.value("quantization") or "")
        if "fp8" in quantization:
            found["precision"] = self.put("quantization", "fp8")
        elif self.value("dtype") == "bfloat16":
            found["precision"] = self.put("dtype", "bf16")
        if (name := _OPTIMIZERS.get(str(self.value("opt_type")))) is not None:
            found["optimizer"] = self.put("opt_type", name)
        return found

    def axes(self, side: str) -> dict[str, int]:
        """Degrees of all axes within slices or across them, -1 where one is open."""
        found = {}
        for key in self.said:
            match = _AXIS.fullmatch(key)
            if match and key.startswith(side) and self.value(key) != 1:
                open_ = self.value(key) == -1
                degree = -1 if open_ else self.number(key)
                if degree is not None:
                    found[match[1]] = degree
                if match[1] not in AXES and degree not in (None, 1):
                    self.problems.add(
                        "check_axis_unread", where=self.said[key].where, value=degree, option=key
                    )
        return found

    def product(self) -> int | None:
        """GPUs of a mesh that leaves none open."""
        degrees = [*self.axes("ici").values(), *self.axes("dcn").values()]
        return None if -1 in degrees else math.prod(degrees)

    def filled(self, side: str, devices: int) -> dict[str, int]:
        """The axes of one side, the open one filled (``max_utils.fill_unspecified_mesh_axes``)."""
        axes = self.axes(side)
        known = math.prod(d for d in axes.values() if d != -1)
        open_ = [name for name, degree in axes.items() if degree == -1]
        whole = devices % known == 0 if open_ else devices == known
        if len(open_) > 1 or not whole:
            first = next((f"{side}_{n}_parallelism" for n in axes if n not in open_), "")
            where = self.said[first].where if first else f"{side}_*_parallelism"
            self.problems.add(
                "check_mesh", where=where, value=known, option=f"{side}_*_parallelism",
                devices=devices,
            )  # fmt: skip
            self.problems.raise_if_any()
        return axes | {name: devices // known for name in open_}

    def plan(self, world: int, per_node: int) -> dict[str, Setting]:
        """The fields of a plan on a number of GPUs."""
        within = min(world, per_node)
        sides = (self.filled("ici", within), self.filled("dcn", max(1, world // within)))
        degrees = dict.fromkeys(AXES.values(), 1)
        places: dict[str, Setting] = {}
        for side, axes in zip(("ici", "dcn"), sides, strict=True):
            for name, degree in axes.items():
                if name in AXES:
                    degrees[AXES[name]] *= degree
                    key = self.said[f"{side}_{name}_parallelism"]
                    places.setdefault(AXES[name], key)
                    if degree > 1:
                        places[AXES[name]] = key
        shard = degrees["shard"] * degrees["ep"]
        sharded = shard > 1 or degrees["cp"] > 1
        values = {n: degrees[n] for n in ("tp", "pp", "cp", "ep")} | {
            "dp": shard * degrees["data"],
            "dp_shard": shard if sharded else degrees["data"],
            "dp_replicate": degrees["data"] if sharded else 1,
            "zero": 3 if sharded else 0,
            "recompute": self.recompute(),
            "sp": any("tensor_sequence" in axes for axes in sides),
        }
        alias = {"dp": "shard", "dp_shard": "shard", "dp_replicate": "data", "zero": "shard"}
        alias |= {"sp": "tp", "recompute": "remat_policy"}
        places["remat_policy"] = self.said["remat_policy"]
        nowhere = Setting(value=None, where=MAXTEXT, spelled="-")
        found = {
            n: replace(places.get(alias.get(n, n), nowhere), value=v) for n, v in values.items()
        }
        if degrees["cp"] > 1:
            comm = _COMM.get(str(self.value("context_parallel_strategy", "all_gather")))
            found["cp_comm"] = replace(nowhere, value=comm or CpComm.ALL_GATHER)
        return found | self.batch(world, degrees["pp"], values["dp"])

    def recompute(self) -> Recompute:
        """What is kept of a forward pass."""
        policy = str(self.value("remat_policy"))
        if policy not in {**_REMAT, **_BETWEEN}:
            self.problems.add(
                "check_unknown_value",
                where=self.said["remat_policy"].where,
                value=policy[:60],
                allowed=(*_REMAT, *_BETWEEN),
                option="remat_policy",
            )
        return {**_REMAT, **_BETWEEN}.get(policy, Recompute.FULL)

    def batch(self, world: int, pp: int, dp: int) -> dict[str, Setting]:
        """Sequences of a step and of a micro-batch; fractions are rounded down."""
        each = self.number("per_device_batch_size", whole=False, least=1e-9)
        steps = self.number("gradient_accumulation_steps")
        if each is None or steps is None:
            return {}
        total = int(each * world * steps)
        number = steps
        if pp > 1:
            stated = self.value("num_pipeline_microbatches")
            number = steps * (
                pp if stated == -1 else self.number("num_pipeline_microbatches") or pp
            )
            if number % (steps * pp):
                self.problems.add(
                    "check_maxtext_rounds",
                    where=self.said["num_pipeline_microbatches"].where,
                    value=number // steps,
                    pp=pp,
                )
        key = "per_device_batch_size"
        if total < dp * number:
            self.problems.add(
                "check_maxtext_batch", where=self.said[key].where, value=total, least=dp * number
            )
        found = {
            "global_batch": self.put(key, total),
            "micro_batch": self.put(key, max(1, total // (dp * number))),
        }
        if pp > 1:
            repeats, layers = self.value("num_pipeline_repeats"), self.layers()
            each_stage = self.number("num_layers_per_pipeline_stage") or 1
            if repeats == -1 and layers:
                repeats = layers // (pp * each_stage)
            looped = isinstance(repeats, int) and repeats > 1
            found["vpp"] = self.put("num_pipeline_repeats", repeats if looped else 1)
            # all forward passes, and their backward passes after them (maxtext/layers/pipeline.py)
            schedule = Schedule.INTERLEAVED if looped else Schedule.GPIPE
            found["schedule"] = self.put("num_pipeline_repeats", schedule)
        return found

    def layers(self) -> int | None:
        """Blocks of the decoder."""
        name = self.preset()
        return load_model(name).num_layers if name else self.value("base_num_decoder_layers")

    def preset(self) -> str | None:
        """The model that a name stands for; empty for none."""
        name = str(self.value("model_name", "default"))
        if name == "default":
            return ""
        short = re.sub(r"-(?:Instruct|base)$", "", name)
        return preset()["models"].get(short) or find_preset(short)

    def model(self) -> dict[str, Setting]:
        """The model, by its name or by its sizes."""
        name = self.preset()
        if name:
            return {"name": self.put("model_name", name)}
        if name is None or str(self.value("decoder_block", "llama2")) not in _DECODERS:
            # described in a file of MaxText's own
            unread = "model_name" if name is None else "decoder_block"
            return {"unread": self.said[unread]}
        nowhere = Setting(value=None, where=MAXTEXT, spelled="-")
        found = {k: replace(nowhere, value=v) for k, v in _FIXED.items()}
        for key, ours in MODEL.items():
            if key in self.said and (number := self.number(key)) is not None:
                found[ours] = self.put(key, number)
        if found.get("num_experts", nowhere).value == 1:
            found.pop("num_experts")
        found["untied"] = replace(nowhere, value=self.value("logits_via_embedding") is not True)
        return found

    def uncounted(self) -> tuple[str, ...]:
        """What saves memory that no plan counts: states and activations on the host."""
        policy = str(self.value("remat_policy"))
        moved = [key for key in _OFFLOADS if self.value(key) is True]
        host = policy.endswith("offloaded") or (
            policy == "custom" and "offload" in [s.value for s in self.said.values()]
        )
        return tuple([*moved, *([f"remat_policy={policy}"] if host else [])])

    def unmodelled(self) -> tuple[Setting, ...]:
        """What no plan says."""
        policy = str(self.value("remat_policy"))
        keys = ["remat_policy"] if policy in _BETWEEN else []
        keys += ["dtype"] if self.value("dtype") != "bfloat16" else []
        keys += ["opt_type"] if self.value("opt_type") not in _OPTIMIZERS else []
        keys += (
            ["num_pipeline_repeats"] if self.value("num_pipeline_repeats") not in (-1, 1) else []
        )
        keys += ["weight_dtype"] if self.value("weight_dtype", "float32") != "float32" else []
        return tuple(self.said[key] for key in keys)
