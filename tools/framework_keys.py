"""Write down the keys and options that frameworks know, from their own sources.

    python tools/framework_keys.py --clones DIR --packages SITE_PACKAGES

``DIR`` holds clones as ``owner+name/repo`` (bare or not), ``SITE_PACKAGES`` the packages of
``make test-frameworks``. The sources are parsed, nothing of them is run. A key counts as known
when any of the versions has it, so that a config of an older one is not called misspelt.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "src/meshplan/inputs/presets/config_keys.yaml"
Sections = dict[str, set[str]]
# what a config of torchtitan 0.3 belongs to, set by the class itself
_OWNER = "_owner"


@dataclass(frozen=True)
class Tree:
    """The files of one version: of a commit of a clone, or of an installed package."""

    place: Path
    commit: str = ""

    def texts(self, pattern: str) -> Iterator[str]:
        """Texts of the files whose path matches."""
        wanted = re.compile(pattern)
        for path in self._paths():
            if wanted.fullmatch(path):
                yield self._text(path)

    def _paths(self) -> list[str]:
        if self.commit:
            listed = self._git("ls-tree", "-r", "--name-only", self.commit)
            return [path for path in listed.splitlines() if path.endswith(".py")]
        found = (p.relative_to(self.place.parent) for p in self.place.rglob("*.py"))
        return [str(path) for path in found]

    def _text(self, path: str) -> str:
        if self.commit:
            return self._git("show", f"{self.commit}:{path}")
        return (self.place.parent / path).read_text("utf-8", "replace")

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.place), *words]
        return subprocess.run(
            command, check=True, capture_output=True, encoding="utf-8", errors="replace"
        ).stdout


class Classes:
    """Dataclasses and models of several files, by name; nested ones by their path as well."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.nodes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        self.unions: dict[str, ast.expr] = {}
        for text in texts:
            tree = _parsed(text)
            self._collect(tree, "")
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.unions.setdefault(node.targets[0].id, node.value)

    def _collect(self, tree: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef):
                name = f"{prefix}{node.name}"
                self.nodes[name].append(node)
                self._collect(node, f"{name}.")

    def fields(self, name: str) -> dict[str, ast.expr]:
        """Fields with their annotations, those of bases and the aliases included."""
        found: dict[str, ast.expr] = {}
        for node in self.nodes.get(name, ()):
            for base in map(_dotted, node.bases):
                # an extension of a config may have its name
                found |= self.fields(base) if base != name else {}
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found[item.target.id] = item.annotation
                    found |= dict.fromkeys(_aliases(item.value), item.annotation)
        return found

    def switched_on(self, name: str) -> Iterator[str]:
        """Fields that are true unless one says otherwise."""
        for node in self.nodes.get(name, ()):
            for base in map(_dotted, node.bases):
                yield from self.switched_on(base) if base != name else ()
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    values = [part for part in ast.walk(item.value or ast.Pass())]
                    if any(isinstance(v, ast.Constant) and v.value is True for v in values):
                        yield item.target.id

    def sections(self, name: str, at: str, into: Sections) -> None:
        """Keys of a class below one place, and of the classes that its fields hold."""
        for key, annotation in self.fields(name).items():
            if key == _OWNER:
                continue
            into[at].add(key)
            for inner in self.named(annotation):
                self.sections(inner, f"{at}.{key}" if at else key, into)

    def named(self, annotation: ast.expr) -> Iterator[str]:
        """Classes that an annotation names."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        for part in ast.walk(annotation):
            if isinstance(part, ast.Attribute | ast.Name):
                name = _dotted(part)
                if name in self.nodes:
                    yield name
                elif name in self.unions and name[:1].isupper():
                    yield from self.named(self.unions[name])


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:  # Python 2, templates
        return ast.Module(body=[], type_ignores=[])


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _aliases(value: ast.expr | None) -> Iterator[str]:
    for word in value.keywords if isinstance(value, ast.Call) else ():
        if word.arg == "alias" and isinstance(word.value, ast.Constant):
            yield str(word.value.value)


def torchtitan(trees: Iterable[Tree]) -> Sections:
    """Sections of ``JobConfig``, and of ``Trainer.Config`` that came after it."""
    into: Sections = defaultdict(set)
    for tree in trees:
        texts = list(tree.texts(r"torchtitan/(?:config_manager|trainer|(?:config|components|tools|"
                                r"observability|distributed)/.*)\.py"))  # fmt: skip
        classes = Classes(texts)
        for root in ("JobConfig", "Trainer.Config"):
            classes.sections(root, "", into)
        # until 2025 the keys were options of a parser
        for text in tree.texts(r"torchtitan/config_manager\.py"):
            for option in _options(text):
                section, _, key = option.rpartition(".")
                into[""].add(section or key)
                into[section].add(key)
    for held in ("metrics.optimizers", "metrics.parallel_dims"):
        into.pop(held, None)
    return into


def nanotron(trees: Iterable[Tree]) -> Sections:
    """Sections of ``Config``; its model is one of several classes."""
    into: Sections = defaultdict(set)
    for tree in trees:
        classes = Classes(tree.texts(r"src/nanotron/config/.*\.py"))
        classes.sections("Config", "", into)
    return into


def bridge(trees: Iterable[Tree]) -> Sections:
    """Sections of ``ConfigContainer``; a model is a provider of any kind."""
    into: Sections = defaultdict(set)
    for tree in trees:
        classes = Classes(tree.texts(r"megatron/(?:bridge|core|training)/.*\.py"))
        for section, annotation in classes.fields("ConfigContainer").items():
            into[""].add(section)
            for name in classes.named(annotation):
                into[section] |= set(classes.fields(name))
        for name in classes.nodes:
            if name.endswith(("Provider", "TransformerConfig", "ModelConfig")):
                into["model"] |= set(classes.fields(name))
            if name.endswith(("DatasetConfig", "DatasetProvider", "DataloaderConfig")):
                into["dataset"] |= set(classes.fields(name))
    # adapters are of many classes, and what is mixed is one of many recipes
    return {s: keys for s, keys in into.items() if s not in ("peft", "mixed_precision")}


# Sections that DeepSpeed hands to a model which forbids other keys, by the class.
_DEEPSPEED_MODELS = {
    "zero_optimization": ("DeepSpeedZeroConfig",),
    "fp16": ("DeepSpeedFP16Config",),
    "bf16": ("DeepSpeedBF16Config",),
    "tensor_parallel": ("TPTrainingConfig",),
    "compile": ("CompileConfig",),
    "comms_logger": ("CommsLoggerConfig",),
    "hybrid_engine": ("HybridEngineConfig",),
    "weight_quantization": ("WeightQuantConfig",),
    "tensorboard": ("TensorBoardConfig",),
    "wandb": ("WandbConfig",),
    "comet": ("CometConfig",),
    "csv_monitor": ("CSVConfig",),
}
# Sections that it picks single keys from, by the name of the variable that holds them.
_DEEPSPEED_DICTS = {
    "": ("param_dict", "self._param_dict"),
    "fp16": ("fp16_dict", "fp16_params"),
    "activation_checkpointing": ("act_chkpt_config_dict",),
    "flops_profiler": ("flops_profiler_dict",),
    "aio": ("aio_dict",),
}
_DEEPSPEED_FILES = (
    r"deepspeed/(?:runtime/(?:config|precision_config|constants|config_utils|compiler)|"
    r"(?:runtime/)?(?:zero|activation_checkpointing|swap_tensor|model_checkpointing|"
    r"tensor_parallel|zenflow|comm|monitor|profiling|autotuning|nebula|datastates|"
    r"compile|utils)/\w*(?:config|constants)\w*|inference/config)\.py"
)


def deepspeed(trees: Iterable[Tree]) -> Sections:
    """Keys of the whole config, and of the sections that are read key by key or as models."""
    into: Sections = defaultdict(set)
    for tree in trees:
        texts = list(tree.texts(_DEEPSPEED_FILES))
        classes, constants = Classes(texts), _constants(texts)
        for section, names in _DEEPSPEED_MODELS.items():
            for name in names:
                classes.sections(name, section, into)
        for text in texts:
            for owner, key in _picked(text, constants):
                for section, variables in _DEEPSPEED_DICTS.items():
                    if owner in variables:
                        into[section].add(key)
        for text in tree.texts(r"deepspeed/module_inject/auto_ep_config\.py"):
            into["expert_parallel"] |= {key for o, key in _picked(text, {}) if o == "param_dict"}
    into[""] |= {section for section in into if section and "." not in section}
    # read by functions that call the config otherwise (deepspeed/runtime/config.py: the size of the
    # world, pipeline; runtime/data_pipeline/constants.py, compression/constants.py,
    # elasticity/constants.py)
    into[""] |= {"sequence_parallel_size", "pipeline", "timers", "data_efficiency", "elasticity"}
    into[""] |= {"curriculum_learning", "compression_training", "quantize_training"}
    into["optimizer"] |= {"type", "params", "legacy_fusion"}
    into["scheduler"] |= {"type", "params"}
    return into


def _constants(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        for node in ast.walk(_parsed(text)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        found[target.id] = node.value.value
    return found


def _picked(text: str, constants: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Mappings and the keys that are looked up in them."""

    def key(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and node.id in constants:
            yield constants[node.id]

    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name.startswith("get_") and len(node.args) > 1:
                yield from ((_dotted(node.args[0]), k) for k in key(node.args[1]))
            elif name.endswith(".get") and node.args:
                yield from ((name.removesuffix(".get"), k) for k in key(node.args[0]))
        elif isinstance(node, ast.Subscript):
            yield from ((_dotted(node.value), k) for k in key(node.slice))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            (where,) = node.comparators
            if isinstance(where, ast.Call):
                where = where.func.value if isinstance(where.func, ast.Attribute) else where
            yield from ((_dotted(where), k) for k in key(node.left))


_ACCELERATE_SECTIONS = {
    "fsdp_config": "fsdp_",
    "fp8_config": "fp8_",
    "dynamo_config": "dynamo_",
    "deepspeed_config": "",
    "megatron_lm_config": "megatron_lm_",
    "mpirun_config": "",
    "parallelism_config": "parallelism_config_",
}


def accelerate(trees: Iterable[Tree]) -> Sections:
    """The config's own keys; those of its sections are options of ``accelerate launch``."""
    into: Sections = defaultdict(set)
    for tree in trees:
        classes = Classes(tree.texts(r"(?:src/)?accelerate/commands/config/config_args\.py"))
        for root in ("ClusterConfig", "SageMakerConfig"):
            into[""] |= set(classes.fields(root))
        launch = tree.texts(r"(?:src/)?accelerate/commands/launch\.py")
        options = {o.replace("-", "_") for text in launch for o in _options(text)}
        # set as arguments and looked at when processes are started
        started = tree.texts(r"(?:src/)?accelerate/utils/launch\.py")
        options |= {name for text in started for name in _attributes(text)}
        for section, prefix in _ACCELERATE_SECTIONS.items():
            mine = {option for option in options if option.startswith(prefix)}
            if section in ("fsdp_config", "fp8_config", "dynamo_config"):
                # the prefix may be left out (launch.py: _validate_launch_command)
                mine |= {option.removeprefix(prefix) for option in mine}
            into[section] |= mine
    # taken before the keys are compared (config_args.py: process_config)
    into[""] |= {"fp16", "dynamo_backend"}
    return into


def _options(text: str) -> Iterator[str]:
    """Names of the options that a parser is given."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call) and _dotted(node.func).endswith("add_argument"):
            for word in node.args:
                if isinstance(word, ast.Constant) and str(word.value).startswith("--"):
                    yield str(word.value)[2:]
                    if any("BooleanOptional" in ast.dump(k) for k in node.keywords):
                        yield f"no-{str(word.value)[2:]}"


def _attributes(text: str) -> Iterator[str]:
    """What is looked up of the arguments of a command."""
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Attribute) and _dotted(node.value) == "args":
            yield node.attr
        elif isinstance(node, ast.Call) and _dotted(node.func) == "getattr":
            owner, name = node.args[:2]
            if _dotted(owner) == "args" and isinstance(name, ast.Constant):
                yield str(name.value)


def _made(texts: list[str]) -> Iterator[str]:
    """Options that Megatron-LM makes of the fields of its configs (argument_utils.py)."""
    classes = Classes(texts)
    for text in texts:
        for node in ast.walk(_parsed(text)):
            if isinstance(node, ast.Call) and _dotted(node.func) == "ArgumentGroupFactory":
                name = _dotted(node.args[0])
                on = set(classes.switched_on(name))
                for field in classes.fields(name):
                    plain = field.replace("_", "-")
                    yield from (f"no-{plain}", f"disable-{plain}") if field in on else (plain,)
    for node in (node for nodes in classes.nodes.values() for node in nodes):
        for item in node.body:  # names that a field has as an option
            if isinstance(item, ast.AnnAssign) and item.value is not None:
                for part in ast.walk(item.value):
                    if isinstance(part, ast.Constant):
                        yield from re.findall(r"^--([a-z][\w-]+)$", str(part.value))


# Options that a misspelt one is never taken for: of older versions and of other programs.
FORMER = "(former)"


def command_options(pattern: str) -> Callable[[Iterable[Tree]], Sections]:
    """Options of all parsers in some files; those of packages are of today."""

    def read(trees: Iterable[Tree]) -> Sections:
        into: Sections = {"": set(), FORMER: set()}
        for tree in trees:
            texts = list(tree.texts(pattern))
            found = {option for text in texts for option in _options(text)} | set(_made(texts))
            into[FORMER if tree.commit else ""] |= {option.replace("_", "-") for option in found}
        into[FORMER] -= into[""]
        return into if into[FORMER] else {"": into[""]}

    return read


def arguments_of(pattern: str, *roots: str) -> Callable[[Iterable[Tree]], Sections]:
    """Options that a parser of Transformers makes of dataclasses, and those of launchers."""
    launchers = command_options(pattern)

    def read(trees: Iterable[Tree]) -> Sections:
        trees = list(trees)
        into = launchers(trees)
        for tree in trees:
            classes = Classes(tree.texts(pattern))
            for root in roots:
                into[""] |= {field.replace("_", "-") for field in classes.fields(root)}
                on = classes.switched_on(root)
                into[""] |= {f"no-{field}".replace("_", "-") for field in on}
        return into

    return read


# What each does about a key that it does not know: the version that is named to people, the
# sections where it refuses (all: "*"), and where that was read.
REFUSES: dict[str, tuple[str, str, str]] = {
    "torchtitan": (
        "torchtitan {version}",
        "*",
        # fields of dataclasses from a TOML file (:166 of 0.2.2), options by tyro
        "torchtitan/config/manager.py",
    ),
    "deepspeed": (
        "DeepSpeed 0.19.8",
        " ".join(_DEEPSPEED_MODELS),
        # elsewhere keys are looked up one by one (deepspeed/runtime/config.py)
        "deepspeed/runtime/config_utils.py:110",
    ),
    "accelerate": (
        "Accelerate 1.15.0",
        ".",
        # what stands in its sections is only set as an argument (commands/launch.py:
        # _validate_launch_command)
        "accelerate/commands/config/config_args.py: from_yaml_file",
    ),
    "nanotron": ("nanotron 2411b022", "*", "src/nanotron/config/config.py:646"),
    "bridge": (
        "Megatron-Bridge 0.6.2",
        "*",
        "megatron/bridge/training/utils/omegaconf_utils.py:180",
    ),
    "megatron": (
        "Megatron-LM (core 0.19.2)",
        "*",
        "megatron/training/arguments.py: parse_args",
    ),
    "hugging_face": (
        "Transformers 5.24.0",
        "",
        # a script adds arguments of its own
        "transformers/hf_argparser.py",
    ),
}
# [what reads it, clones with their tags, packages]
_MEGATRON = r"(?:megatron/(?:training|core|legacy|post_training|rl)/.*|megatron/\w+|pretrain_\w+|train_\w+|(?:tools|examples|examples_deepspeed|tasks)/.*|torch/distributed/run)\.py"  # noqa: E501
_HUGGING = r"(?:src/)?(?:accelerate/commands/launch|transformers/training_args\w*|deepspeed/launcher/(?:runner|launch)|torch/distributed/run)\.py"  # noqa: E501
FORMATS: dict[str, Any] = {
    "torchtitan": (
        torchtitan,
        {
            "pytorch/torchtitan": (
                "5c69c02ea",
                "347ddc0d5",
                "a09cde350",
                "6a6f755d2",
                "fb0a942f1",
                "9a2f5784c",
                "e4e48349c",
                "ce5ace24d",
                "adae6b6fd",
                "08b8b244f",
                "eb13ba222",
                "v0.1.0",
                "v0.2.0",
                "v0.2.1",
                "v0.2.2",
                "b5bcd76c",
            )
        },
        ("torchtitan",),
    ),
    "deepspeed": (
        deepspeed,
        {"deepspeedai/DeepSpeed": ("v0.9.5", "v0.12.6", "v0.14.5", "v0.16.9", "v0.17.6")},
        ("deepspeed",),
    ),
    "accelerate": (
        accelerate,
        {"huggingface/accelerate": ("v0.20.3", "v0.27.2", "v0.34.2", "v1.6.0", "v1.10.1")},
        ("accelerate",),
    ),
    "nanotron": (nanotron, {"huggingface/nanotron": ("v0.4", "v0.5", "2411b022")}, ()),
    "bridge": (bridge, {}, ("megatron", "megatron/bridge")),
    "megatron": (
        command_options(_MEGATRON),
        {
            "NVIDIA/Megatron-LM": (
                "v2.6",
                "23.06",
                "core_v0.5.0",
                "core_v0.7.0",
                "core_v0.9.0",
                "core_v0.11.0",
                "core_v0.13.0",
                "core_v0.15.0",
                "core_v0.17.0",
                "d98e8a64",
            ),
            "deepspeedai/Megatron-DeepSpeed": ("v2.4", "4efb479d"),
        },
        ("megatron", "torch"),
    ),
    "hugging_face": (
        arguments_of(_HUGGING, "TrainingArguments", "Seq2SeqTrainingArguments"),
        {},
        ("transformers", "accelerate", "deepspeed", "torch"),
    ),
}


def main() -> None:
    """Read all sources and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    given = parser.parse_args()
    formats = {}
    for name, (read, clones, packages) in FORMATS.items():
        trees = [
            Tree(given.clones / repository.replace("/", "+") / "repo", tag)
            for repository, tags in clones.items()
            for tag in tags
        ]
        trees += [Tree(given.packages / p) for p in packages if "/" not in p]
        sources = [f"{r} {', '.join(t)}" for r, t in clones.items()]
        sources += [f"{_named(p)} {_version(given.packages, p)}" for p in packages]
        formats[name] = (sources, read(trees))
    OUT.write_text(_written(formats), encoding="utf-8")


def _named(folder: str) -> str:
    """The package that a folder is of; two share that of Megatron."""
    names = {"megatron": "megatron_core", "megatron/bridge": "megatron_bridge"}
    return names.get(folder, folder)


def _version(packages: Path, package: str) -> str:
    (found,) = packages.glob(f"{_named(package)}-*.dist-info")
    return found.name.removesuffix(".dist-info").rpartition("-")[2]


_HEAD = """\
# Keys and options that frameworks know, as tools/framework_keys.py reads them from their sources;
# a section that is not listed takes any key.
"""


def _written(formats: Mapping[str, tuple[list[str], Sections]]) -> str:
    lines = [_HEAD.rstrip()]
    for name, (sources, sections) in formats.items():
        known_as, refused, source = REFUSES[name]
        lines += [f"{name}:", f"  framework: {known_as}", f"  refuses: {_scalar(refused)}"]
        lines += textwrap.wrap(f"  source: {_scalar(source)}", 98, subsequent_indent="    ")
        lines.append("  sources:")
        for listed in sources:
            lines += textwrap.wrap(f"    - {listed}", 98, subsequent_indent="      ")
        lines.append("  sections:")
        for section in sorted(sections):
            keys = " ".join(sorted(k for k in sections[section] if re.fullmatch(r"\w[\w-]*", k)))
            lines.append(f"    {section or '.'}: >-")
            lines += _wrapped(keys, indent=6)
    return "\n".join(lines) + "\n"


def _wrapped(text: str, *, indent: int) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(
        text, 98, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False
    )


def _scalar(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    main()
