"""torchtitan: the model of a plan, a flavour of its registry or built from the dimensions.

References:
    1. ``torchtitan/models/{llama3,qwen3,deepseek_v3,gpt_oss}/__init__.py`` of 0.3.0.
"""

from __future__ import annotations

from functools import lru_cache

from meshplan.emit.records import Obstacle, once
from meshplan.emit.torchtitan_converters import converters
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import Attention, Layer, Mlp, Model, Moe
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Plan

__all__ = ["FLAVOURS", "SPLIT", "flavour_of", "model_obstacles", "model_source"]

# Our preset -> package and flavour of torchtitan's registry (reference 1).
FLAVOURS: dict[str, tuple[str, str]] = {
    "llama-3.2-1b": ("llama3", "1B"),
    "llama-3.2-3b": ("llama3", "3B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
}
# Families whose attention and feed-forward network the builders of reference 1 make.
SPLIT = '''def split(layers: list[int]) -> list[list[str]]:
    """Names of the modules of each pipeline stage, from its number of layers."""
    names = [f"layers.{i}" for i in range(sum(layers))]
    parts = [[names.pop(0) for _ in range(count)] for count in layers]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts

'''


@lru_cache(maxsize=len(FLAVOURS))
def _preset(name: str) -> Model:
    return load_model(name)


def flavour_of(model: Model) -> tuple[str, str] | None:
    """The package and flavour of the registry that has exactly this architecture."""
    for name, flavour in FLAVOURS.items():
        other = _preset(name)
        if (
            (model.hidden, model.vocab, model.tied_embeddings)
            == (other.hidden, other.vocab, other.tied_embeddings)
            and model.layers == other.layers
            and model.norm == other.norm
        ):
            return flavour
    return None


def model_obstacles(scenario: Scenario) -> tuple[Obstacle, ...]:
    """What the models of torchtitan do not have."""
    model = scenario.model
    found: list[Obstacle] = []
    flavour = flavour_of(model)
    if flavour is None:
        if len(set(model.layers)) > 1:
            found.append(Obstacle(code="mixed_layers", model=True))
        for layer in dict.fromkeys(model.layers):
            if not _buildable(layer, model):
                found.append(Obstacle(code="not_llama_or_qwen", model=True))
        if model.norm != "rmsnorm" or model.embedding_dim != model.hidden or model.num_positions:
            found.append(Obstacle(code="not_llama_or_qwen", model=True))
    if model.mtp_layers and (flavour is None or flavour[0] != "deepseek_v3"):
        found.append(Obstacle(code="mtp", model=True))
    return once(found)


def _buildable(layer: Layer, model: Model) -> bool:
    """Llama's and Qwen3's block: plain attention, gated SiLU, two norms, no biases."""
    mixer, ffn = layer.mixer, layer.ffn
    if layer.num_norms != 2 or layer.parallel:
        return False
    if not isinstance(mixer, Attention) or not mixer.rotary:
        return False
    if mixer.qkv_bias or mixer.out_bias or mixer.sinks or mixer.window_size is not None:
        return False
    qwen = mixer.qk_norm == "head"
    if mixer.qk_norm == "full" or (not qwen and mixer.head_dim * mixer.num_heads != model.hidden):
        return False
    if isinstance(ffn, Mlp):
        return ffn.gated and not ffn.bias and ffn.activation == "silu"
    plain = isinstance(ffn, Moe) and not ffn.bias and not ffn.shared_ffn_hidden and ffn.gated
    return qwen and plain and not model.mtp_layers


def model_source(scenario: Scenario, plan: Plan) -> tuple[list[str], str]:
    """Imports and the function ``model_spec()`` with its helpers."""
    split = SPLIT + "\n" if plan.pp > 1 else ""
    flavour = flavour_of(scenario.model)
    package = flavour[0] if flavour is not None else _package(scenario.model)
    more_imports, made = converters(scenario, package)
    if flavour is not None:
        body = _flavour(scenario.model, *flavour, made)
        imports = [f"from torchtitan.models.{package} import model_registry"]
    else:
        imports, body = _built(scenario.model)
        if made:
            body += _convert(made)
            more_imports.append("from torchtitan.models.utils import validate_converter_order")
    imports += more_imports
    body += "    return spec\n"
    imports.append("from torchtitan.protocols.model_spec import ModelSpec")
    head = 'def model_spec() -> ModelSpec:\n    """The model."""\n'
    return imports, split + head + body


def _flavour(model: Model, package: str, name: str, converters: list[str]) -> str:
    """A flavour of the registry, which applies converters itself."""
    arguments = [f'"{name}"']
    if model.mtp_layers:
        arguments.append(f"num_mtp_layers={len(model.mtp_layers)}")
    if package == "gpt_oss":
        # variable-length attention has no context parallelism
        arguments.append('attn_backend="flex"')
    if not converters:
        return f"    spec = model_registry({', '.join(arguments)})\n"
    rows = "".join(f"            {line},\n" for line in converters)
    arguments.append(f"converters=[\n{rows}        ]")
    return (
        "    spec = model_registry(\n" + "".join(f"        {a},\n" for a in arguments) + "    )\n"
    )


def _convert(converters: list[str]) -> str:
    """Apply converters to a config whose sizes were changed before."""
    rows = "".join(f"        {line},\n" for line in converters)
    return (
        f"    converters = [\n{rows}    ]\n"
        "    validate_converter_order(converters)\n"
        "    for converter in converters:\n"
        "        spec.model = converter.build().convert(spec.model)\n"
    )


def _package(model: Model) -> str:
    """Whose builders make the layers of a model that is no flavour."""
    mixer = model.layers[0].mixer
    return "qwen3" if isinstance(mixer, Attention) and mixer.qk_norm == "head" else "llama3"


def _built(model: Model) -> tuple[list[str], str]:
    """Change the dimensions of a flavour, whose builders make the layers."""
    layer = model.layers[0]
    mixer, ffn = layer.mixer, layer.ffn
    assert isinstance(mixer, Attention) and isinstance(ffn, Mlp | Moe)
    package, moe = _package(model), isinstance(ffn, Moe)
    qwen = package == "qwen3"
    build = "_build_qwen3_moe_layers" if moe else f"_build_{package}_layers"
    base = "30B-A3B" if moe else ("0.6B" if qwen else "8B")
    sizes: dict[str, object] = {
        "n_layers": model.num_layers,
        "dim": model.hidden,
        "n_heads": mixer.num_heads,
        "n_kv_heads": mixer.num_kv_heads,
    }
    if qwen:
        sizes["head_dim"] = mixer.head_dim
    if isinstance(ffn, Moe):
        sizes["moe_hidden_dim"] = ffn.expert_ffn_hidden
        sizes["num_experts"] = ffn.num_experts
        sizes["top_k"] = ffn.top_k
    else:
        sizes["hidden_dim"] = ffn.ffn_hidden
    lines = [f"{name}={value}" for name, value in sizes.items()]
    lines += ['attn_backend="flex"', *(['moe_comm_backend="standard"'] if moe else [])]
    arguments = "".join(f"        {line},\n" for line in [*lines, "rope=rope"])
    body = (
        f'    spec = model_registry("{base}")\n'
        "    config = spec.model\n"
        "    # the base of the rotation is no part of a plan: take it from your model's config\n"
        "    rope = dataclasses.replace(\n"
        f"        config.layers[0].attention.rope, dim={mixer.head_dim}, theta=500000.0\n"
        "    )\n"
        f"    config.dim, config.vocab_size = {model.hidden}, {model.vocab}\n"
        f"    config.enable_weight_tying = {model.tied_embeddings}\n"
        f"    config.tok_embeddings.num_embeddings = {model.vocab}\n"
        f"    config.tok_embeddings.embedding_dim = {model.hidden}\n"
        f"    config.norm.normalized_shape = {model.hidden}\n"
        f"    config.lm_head.in_features = {model.hidden}\n"
        f"    config.lm_head.out_features = {model.vocab}\n"
        f"    config.layers = {build}(\n{arguments}    )\n"
    )
    imports = ["import dataclasses", f"from torchtitan.models.{package} import {build}"]
    imports[1] += ", model_registry"
    return imports, body
