"""Megatron-LM: options of ``pretrain_gpt.py`` and of the torchrun around it.

References:
    1. ``megatron/training/arguments.py`` of megatron-core 0.19.2: names and defaults.
"""

from __future__ import annotations

from dataclasses import replace

from meshplan.check.hybrid import read_pattern
from meshplan.check.megatron_deepspeed import in_deepspeed
from meshplan.check.megatron_options import COUNTS, FLAGS, LAUNCHER, MODEL, MODEL_FLAGS
from meshplan.check.megatron_switches import (
    UNCOUNTED_MODULES,
    offloaded_part,
    switches_of,
    uncounted_of,
)
from meshplan.check.options import Option, whole
from meshplan.check.records import Reading, Setting
from meshplan.check.shell_words import UNKNOWN
from meshplan.errors import ProblemList, UserError
from meshplan.inputs.load.megatron_layout import read_layout
from meshplan.space.plan import CpComm, Framework, Recompute

__all__ = ["LAUNCHER", "read_megatron"]

_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_CP_COMM = {
    "p2p": CpComm.P2P,
    "all_gather": CpComm.ALL_GATHER,
    "allgather": CpComm.ALL_GATHER,
    "a2a": CpComm.ALL_TO_ALL,
}
_MODULES = {
    "core_attn": Recompute.CORE_ATTENTION,
    "layernorm": Recompute.NORM,
    "moe_act": Recompute.MLP_ACTIVATION,
    "mlp": Recompute.MLP,
    "moe": Recompute.MOE,
    "mla_up_proj": Recompute.MLA_UP_PROJECTION,
    "shared_experts": Recompute.SHARED_EXPERTS,
}
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
_MOMENTS = {"bf16": "adamw16bit", "fp16": "adamw16bit", "fp8": "adamw8bit"}
_RECIPES = {"mxfp8": "mxfp8", **dict.fromkeys(("delayed", "tensorwise", "blockwise"), "fp8")}
# Layers that the options above do not describe.
_UNREAD_LAYERS = (
    "hybrid-override-pattern",
    "experimental-attention-variant",
    "heterogeneous-layers-config-path",
)
# Options that are no counts and that a plan or a model is read from.
_TELLING = {
    *MODEL_FLAGS,
    *FLAGS,
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "use-custom-fsdp",
    "use-torch-fsdp2",
    "data-parallel-sharding-strategy",
    "cp-comm-type",
    "recompute-granularity",
    "recompute-activations",
    "recompute-method",
    "recompute-modules",
    "pipeline-model-parallel-layout",
    "fp8-format",
    "fp4-format",
    "optimizer",
    "attention-dropout",
    "hidden-dropout",
    "attention-backend",
    "transformer-impl",
    "normalization",
    "position-embedding-type",
    "tokenizer-type",
    "tokenizer-model",
    "moe-layer-freq",
}


class _Reader:
    """Collects what the options of one command say."""

    def __init__(self, file: str, problems: ProblemList) -> None:
        self.file, self.problems = file, problems
        self.settings: dict[str, Setting] = {}
        self.model: dict[str, Setting] = {}
        self.unknown: list[Setting] = []
        self.texts: dict[str, Option] = {}
        self.present: dict[str, Option] = {}

    def put(self, target: dict[str, Setting], name: str, value: object, option: Option) -> None:
        where = f"{self.file}:{option.line}"
        target[name] = Setting(value=value, where=where, spelled=option.spelled)

    def read(self, option: Option) -> None:
        if option.undecided and option.name in _TELLING:
            where, spelled = f"{self.file}:{option.line}", option.spelled
            self.unknown.append(Setting(value=option.name, where=where, spelled=spelled))
            return
        self.present[option.name] = option
        for table, target in ((COUNTS, self.settings), (MODEL, self.model)):
            first = option.value.split(",")[0] if option.name == "window-size" else option.value
            trimmed = replace(option, values=(first,))
            if whole(
                trimmed,
                file=self.file,
                table=table,
                settings=target,
                unknown=self.unknown,
                problems=self.problems,
            ):
                return
        if option.name in FLAGS:
            name, value = FLAGS[option.name]
            self.put(self.settings, name, value, option)
        elif option.name in MODEL_FLAGS:
            name, value = MODEL_FLAGS[option.name]
            self.put(self.model, name, value, option)
        elif option.value and UNKNOWN not in option.value:
            self.texts[option.name] = option

    def name(self, option: str, names: dict[str, object]) -> object | None:
        """A value that is one of a few names."""
        given = self.texts.get(option)
        if given is None:
            return None
        if given.value not in names:
            self.problems.add(
                "check_unknown_value",
                where=f"{self.file}:{given.line}",
                value=given.value,
                allowed=tuple(names),
                option=given.spelled,
            )
            return None
        return names[given.value]


def read_megatron(options: list[Option], *, file: str, problems: ProblemList) -> Reading:
    """Read the options of a training command."""
    reader = _Reader(file, problems)
    for option in options:
        reader.read(option)
    for finish in (_sharding, _recompute, _pipeline, _numbers, _model_texts):
        finish(reader)
    forked = "deepspeed" in reader.present
    # a fork with its options and none of their settings
    for name, option in ({} if forked else switches_of(reader.present)).items():
        reader.put(reader.settings, name, True, option)
    part = offloaded_part(reader.present)
    if part is not None and reader.settings.get("offload"):
        reader.put(reader.settings, "offload_fraction", part[0], part[1])
        if not part[0]:
            reader.settings.pop("offload")
    reading = Reading(
        framework=Framework.MEGATRON,
        settings=reader.settings,
        model=reader.model,
        unknown=tuple(reader.unknown),
        uncounted=uncounted_of(reader.present, reader.settings),
    )
    return in_deepspeed(reading, reader.present) if forked else reading


def _sharding(reader: _Reader) -> None:
    zero, option = 0, reader.present.get("use-distributed-optimizer")
    if option is not None:
        zero = 1
    stage = reader.texts.get("zero-stage")
    if stage is not None and "deepspeed" in reader.present:
        option, named = stage, reader.name("zero-stage", {str(n): n for n in range(4)})
        zero = named if isinstance(named, int) else 0
    fsdp = reader.present.get("use-megatron-fsdp") or reader.present.get("use-custom-fsdp")
    if fsdp is not None:
        option = reader.texts.get("data-parallel-sharding-strategy") or fsdp
        named = reader.name("data-parallel-sharding-strategy", dict(_STRATEGIES))
        zero = named if isinstance(named, int) else 0
    if torch_fsdp := reader.present.get("use-torch-fsdp2"):
        option, zero = torch_fsdp, 3
    if option is not None:
        reader.put(reader.settings, "zero", zero, option)
    else:
        reader.settings["zero"] = Setting(value=0, where=reader.file, spelled="-")
    comm = reader.name("cp-comm-type", dict(_CP_COMM))
    if comm is not None:
        reader.put(reader.settings, "cp_comm", comm, reader.texts["cp-comm-type"])
    # sequence parallelism is what the flag says: without it there is none
    reader.settings.setdefault("sp", Setting(value=False, where=reader.file, spelled="-"))


def _recompute(reader: _Reader) -> None:
    option = reader.texts.get("recompute-granularity") or reader.present.get(
        "recompute-activations"
    )
    mode = Recompute.NONE
    old = reader.present.get("checkpoint-activations") or reader.present.get(
        "deepspeed-activation-checkpointing"
    )
    if option is None and old is not None:
        # the name of Megatron-DeepSpeed
        reader.put(reader.settings, "recompute", Recompute.FULL, old)
        return
    if option is not None:
        if option.value == "full":
            mode = Recompute.FULL
        elif option.name == "recompute-activations" or option.value == "selective":
            mode = _modules(reader)
        else:
            reader.problems.add(
                "check_unknown_value",
                where=f"{reader.file}:{option.line}",
                value=option.value,
                allowed=("full", "selective"),
                option=option.spelled,
            )
        reader.put(reader.settings, "recompute", mode, option)
    else:
        reader.settings["recompute"] = Setting(value=mode, where=reader.file, spelled="-")
    method = reader.texts.get("recompute-method")
    if mode is not Recompute.FULL or method is None or method.value != "block":
        # uniform: every layer is recomputed, the number is that of a group
        reader.settings.pop("recompute_layers", None)


def _modules(reader: _Reader) -> Recompute:
    given = reader.texts.get("recompute-modules")
    mode = Recompute.NONE
    for name in given.values if given else ("core_attn",):
        if name in _MODULES:
            mode |= _MODULES[name]
        elif given is not None and name not in UNCOUNTED_MODULES:
            reader.problems.add(
                "check_unknown_value",
                where=f"{reader.file}:{given.line}",
                value=name,
                allowed=(*_MODULES, *UNCOUNTED_MODULES),
                option="--recompute-modules",
            )
    return mode


_COUNTED = {
    "account-for-embedding-in-pipeline-split": "count_embedding",
    "account-for-loss-in-pipeline-split": "count_loss",
}


def _pipeline(reader: _Reader) -> None:
    pp = reader.settings.get("pp")
    stages = pp.value if pp is not None and isinstance(pp.value, int) else 1
    layout = reader.texts.get("pipeline-model-parallel-layout")
    if layout is not None:
        layers = read_layout(layout.value)
        if not layers or len(layers) % stages:
            reader.problems.add(
                "check_bad_layout",
                where=f"{reader.file}:{layout.line}",
                value=layout.value[:80],
                stages=len(layers),
                pp=stages,
            )
            return
        reader.put(reader.settings, "stage_layers", layers, layout)
        reader.put(reader.settings, "vpp", len(layers) // stages, layout)
        return
    letters = reader.texts.get("hybrid-layer-pattern")
    if letters is not None:
        _hybrid(reader, letters, stages)
        return
    for option, name in _COUNTED.items():
        if option in reader.present:
            reader.put(reader.settings, name, True, reader.present[option])


def _hybrid(reader: _Reader, letters: Option, stages: int) -> None:
    """The stages of a hybrid model; a pattern without bars is dealt evenly."""
    try:
        parts, _ = read_pattern(letters.value, where=f"{reader.file}:{letters.line}")
    except UserError as error:
        reader.problems.extend(error)
        return
    reader.put(reader.model, "pattern", letters.value, letters)
    if len(parts) == 1:
        return
    if len(parts) % stages:
        reader.problems.add(
            "check_bad_stages",
            where=f"{reader.file}:{letters.line}",
            value=letters.value[:80],
            stages=len(parts),
            pp=stages,
        )
        return
    reader.put(reader.settings, "vpp", len(parts) // stages, letters)


def _numbers(reader: _Reader) -> None:
    if fp8 := reader.texts.get("fp8-format"):
        recipe = reader.texts.get("fp8-recipe")
        reader.put(reader.settings, "precision", "fp8", fp8)
        if recipe is not None and recipe.value == "custom":
            # quantizers of the reader's own code
            where = f"{reader.file}:{recipe.line}"
            spelled = f"{recipe.spelled} custom"
            reader.unknown.append(Setting(value="fp8-recipe", where=where, spelled=spelled))
        elif recipe is not None and (precision := reader.name("fp8-recipe", dict(_RECIPES))):
            reader.put(reader.settings, "precision", precision, fp8)
    if fp4 := reader.texts.get("fp4-format"):
        reader.put(reader.settings, "precision", "nvfp4", fp4)
    optimizer = reader.texts.get("optimizer")
    name = reader.name("optimizer", dict(_OPTIMIZERS))
    narrow = _narrow_moments(reader)
    if optimizer and name:
        own = narrow if narrow and name == "adamw" else name
        reader.put(reader.settings, "optimizer", own, optimizer)
    elif narrow and not optimizer:
        reader.put(reader.settings, "optimizer", narrow, reader.texts["exp-avg-dtype"])
    dropouts = [reader.texts.get(f"{part}-dropout") for part in ("attention", "hidden")]
    if not all(d is not None and _is_zero(d.value) for d in dropouts):
        # 0.1 unless the script says otherwise (reference 1)
        reader.settings["dropout"] = Setting(value=True, where=reader.file, spelled="-")
    local = reader.texts.get("transformer-impl")
    backend = reader.texts.get("attention-backend")
    if backend is not None and backend.value in ("unfused", "local"):
        reader.put(reader.settings, "attention", "unfused", backend)
    elif local is not None and local.value == "local" and "use-flash-attn" not in reader.present:
        reader.put(reader.settings, "attention", "unfused", local)


def _narrow_moments(reader: _Reader) -> str:
    """The optimizer whose two moments have the stated format below 32 bits, if they do."""
    if "use-precision-aware-optimizer" not in reader.present:
        return ""
    given = (reader.texts.get(f"exp-avg{square}-dtype") for square in ("", "-sq"))
    names = {_MOMENTS.get(option.value, "") if option else "" for option in given}
    return names.pop() if len(names) == 1 else ""


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0.0
    except ValueError:
        return False


def _model_texts(reader: _Reader) -> None:
    for option, name in (
        ("normalization", "norm"),
        ("position-embedding-type", "positions"),
        ("tokenizer-type", "tokenizer"),
        ("tokenizer-model", "tokenizer_model"),
        ("moe-layer-freq", "moe_layers"),
        ("window-attn-skip-freq", "window_layers"),
        ("softmax-type", "softmax"),
    ):
        if option in reader.texts:
            reader.put(reader.model, name, reader.texts[option].value, reader.texts[option])
    if rotary := reader.present.get("use-rotary-position-embeddings"):
        reader.put(reader.model, "positions", "rope", rotary)
    if "group-query-attention" not in reader.present:
        # without the flag the number of groups is not looked at (argument_utils.py:330)
        reader.model.pop("num_kv_heads", None)
    elif not any(unread.value == "num_kv_heads" for unread in reader.unknown):
        # one group where the flag stands alone (transformer_config.py:168)
        alone = reader.present["group-query-attention"]
        where, spelled = f"{reader.file}:{alone.line}", "--group-query-attention"
        one = Setting(value=1, where=where, spelled=spelled)
        reader.model.setdefault("num_kv_heads", one)
    for option in _UNREAD_LAYERS:
        if option in reader.present:
            reader.put(reader.model, "unread", True, reader.present[option])
    merges = reader.present.get("merge-file")
    if merges is not None and "tokenizer-type" not in reader.texts:
        # a vocabulary with a file of merges is read as GPT-2's byte pairs
        reader.put(reader.model, "tokenizer", "GPT2BPETokenizer", merges)
