"""Blocks that predict further tokens (multi-token prediction)."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_family import Family
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.model import Model

__all__ = ["deepseek_mtp"]


def deepseek_mtp(keys: Keys, family: Family, model: Model) -> Model:
    """Add the MTP blocks of DeepSeek-V3 and kin.

    Each is one more block like the last one, a projection of two concatenated states to one, and
    a norm on either state and on the result; embedding and head are those of the main model.
    See DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    num = keys.size_or_none("num_nextn_predict_layers", zero=True) or 0
    if not any(name in keys.data for name in keys.names("num_nextn_predict_layers")):
        keys.note("model_unstated", "num_nextn_predict_layers")
    if not num or not model.layers:
        return model
    join = 2 * model.hidden * model.hidden + 3 * model.hidden
    keys.note("model_mtp_apart", str(num))
    return replace(
        model,
        mtp_layers=(model.layers[-1],) * num,
        other_parameters={**model.other_parameters, "mtp_join": num * join},
    )
