"""Count the parameters of Hugging Face model classes, for tests/golden/hf_class_totals.json.

Builds each decoder class on torch's meta device (no memory, no weights), once with a small depth
and once for every key of its configuration changed, and notes the totals. Needs transformers and
torch, which are no dependencies of the project:

    pip install transformers torch
    python tools/hf_class_totals.py tests/golden/hf_class_totals.json
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

# Classes whose defaults cannot be built as they are.
EXTRA: dict[str, dict[str, Any]] = {
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "moe_topk": 1, "num_experts": 4},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 12},
}
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SMALL_DEPTH = 6
NOISE = set(transformers.PretrainedConfig().to_dict()) - {"tie_word_embeddings"}


def main(path: str) -> None:
    """Write the totals of all decoder classes."""
    families = {}
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        cls = getattr(transformers, name if isinstance(name, str) else name[0])
        entry = count_family(model_type, cls)
        if entry is not None:
            families[model_type] = entry
    source = (
        f"parameters of the model classes in Hugging Face Transformers {transformers.__version__}, "
        f"built on the meta device of torch {torch.__version__}"
    )
    text = json.dumps({"source": source, "families": families}, separators=(",", ":"))
    Path(path).write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")


def count_family(model_type: str, cls: Any) -> dict[str, Any] | None:
    """Count one class and its variants; None where it cannot be built."""
    kwargs = dict(EXTRA.get(model_type, {}))
    base = build(model_type, cls, kwargs)
    if base is None or base[0].get("is_encoder_decoder"):
        return None
    depth = next((key for key in DEPTHS if key in base[0]), None)
    if depth is not None:
        shallow = build(model_type, cls, {**kwargs, depth: SMALL_DEPTH})
        if shallow is not None:
            kwargs, base = {**kwargs, depth: SMALL_DEPTH}, shallow
    config, total = base
    variants = []
    for key, value in config.items():
        for other in alternatives(value):
            changed = build(model_type, cls, {**kwargs, key: other})
            if changed is not None and changed[1] != total:
                keys = {k: v for k, v in changed[0].items() if config.get(k, "-") != v}
                variants.append({"key": key, "set": keys, "total": changed[1]})
    return {"class": cls.__name__, "config": config, "total": total, "variants": variants}


def alternatives(value: Any) -> tuple[Any, ...]:
    """Other values that a key could have."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value * 2,) if value else (1,)
    return ()


def build(model_type: str, cls: Any, kwargs: dict[str, Any]) -> tuple[dict[str, Any], int] | None:
    """Configuration and parameters of a model, None where the class refuses."""
    try:
        own = cls.config_class.model_type == model_type
        config = (cls.config_class if own else CONFIG_MAPPING[model_type])(**kwargs)
        with torch.device("meta"):
            model = cls._from_config(config)
        model.tie_weights()
    except Exception:  # whatever a class raises, it cannot be counted
        return None
    total = sum(parameter.numel() for parameter in model.parameters())
    return clean(config.to_dict()) | {"model_type": model_type}, total


def clean(value: Any) -> Any:
    """Drop what every configuration carries."""
    if not isinstance(value, dict):
        return value
    return {
        k: clean(v)
        for k, v in value.items()
        if k not in NOISE and not k.endswith("token_id") and not k.startswith("rope_")
    }


if __name__ == "__main__":
    main(sys.argv[1])
