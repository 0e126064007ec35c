"""Put a model together from the keys of a configuration and the facts of its family."""

from __future__ import annotations

from dataclasses import replace

from meshplan.inputs.load.hf_attention import read_attention
from meshplan.inputs.load.hf_family import Family, flag
from meshplan.inputs.load.hf_ffn import read_ffns
from meshplan.inputs.load.hf_keys import Keys
from meshplan.inputs.load.hf_names import is_weighty
from meshplan.inputs.model import Layer, Model

__all__ = ["read_decoder"]

# Blocks for further tokens, in families whose shape of such blocks is not known here.
_FURTHER_TOKENS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "mtp_num_layers",
    "num_mtp_modules",
)
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "seq_length",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "max_context_length",
    "sequence_len",
)


def read_decoder(keys: Keys, family: Family, *, name: str, source: str) -> Model:
    """Read a decoder.

    Args:
        keys: the configuration of the text decoder.
        family: what its model class fixes.
        name: how the user called the model.
        source: where the configuration comes from.

    Raises:
        UserError: with all that is missing, malformed or contradictory.
    """
    if family.refine is not None:
        family = family.refine(keys, family)
    hidden = keys.size("hidden_size")
    model = Model(
        name=name,
        family=keys.family,
        hidden=hidden,
        vocab=keys.size("vocab_size"),
        layers=tuple(_layers(keys, family, hidden)),
        tied_embeddings=keys.flag("tie_word_embeddings", family.tied),
        head_bias=flag(keys, family.head_bias),
        embedding_dim=hidden,
        num_positions=_positions(keys, family),
        norm=family.norm,
        embedding_norm=flag(keys, family.embedding_norm),
        final_norm=family.final_norm,
        max_seq_len=_max_seq_len(keys),
        source=source,
    )
    if family.finish is not None:
        model = family.finish(keys, family, model)
    _check_unread(keys)
    keys.problems.raise_if_any()
    return replace(model, notes=(*model.notes, *keys.notes))


def _check_unread(keys: Keys) -> None:
    """Refuse keys that decide which weights exist and that nothing read; note the others."""
    unread = keys.unread()
    for key in unread:
        if is_weighty(key):
            keys.problem("model_key_unknown", key, value=keys.data[key])
    for key in _FURTHER_TOKENS:
        if key in unread:
            keys.note("model_left_out", key)
    rest = [key for key in unread if not is_weighty(key) and key not in _FURTHER_TOKENS]
    if rest:
        keys.note("model_unread", ", ".join(rest))


def _layers(keys: Keys, family: Family, hidden: int) -> list[Layer]:
    if family.blocks is not None:
        return family.blocks(keys, family)
    num_layers = keys.size("num_hidden_layers")
    mixers = (family.mixers or read_attention)(keys, family, num_layers, hidden)
    ffns = (family.ffns or read_ffns)(keys, family, num_layers, hidden)
    parallel = flag(keys, family.parallel)
    made: dict[tuple[object, object], Layer] = {}
    layers = []
    for mixer, ffn in zip(mixers, ffns, strict=True):
        if (mixer, ffn) not in made:
            extra = family.extra(keys, hidden, mixer, ffn) if family.extra else 0
            made[mixer, ffn] = Layer(
                mixer=mixer,
                ffn=ffn,
                num_norms=family.num_norms,
                extra_parameters=extra,
                parallel=parallel,
            )
        layers.append(made[mixer, ffn])
    return layers


def _positions(keys: Keys, family: Family) -> int:
    if family.positions is None:
        return 0
    return keys.size(family.positions.key) + family.positions.offset


def _max_seq_len(keys: Keys) -> int:
    """The longest sequence that the file names, under whichever key; it sizes nothing."""
    for key in _LENGTHS:
        value = keys.data.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0
