"""Which layers of a family see only the tokens of a sliding window."""

from __future__ import annotations

from meshplan.inputs.load.hf_family import Windows
from meshplan.inputs.load.hf_keys import Keys

__all__ = [
    "alternating",
    "by_attention_types",
    "by_layer_types",
    "every_layer",
    "periodic",
    "qwen2_windows",
    "typed",
]

_LOCAL = {"sliding_attention", "chunked_attention", "local_attention", "sliding", "local"}


def typed(keys: Keys, num_layers: int) -> list[int | None] | None:
    """Windows by ``layer_types``; None where the file has no such list."""
    types = keys.names_list("layer_types", num_layers)
    if types is None:
        return None
    keys.read_all("sliding_window_pattern", "max_window_layers", "use_sliding_window")
    window = _window(keys, required=bool(_LOCAL & set(types)))
    return [window if kind in _LOCAL else None for kind in types]


def by_layer_types(keys: Keys, num_layers: int) -> list[int | None]:
    """Windows where ``layer_types`` says so, none otherwise."""
    listed = typed(keys, num_layers)
    if listed is None and _window(keys, required=False):
        keys.missing("layer_types")
    return listed or [None] * num_layers


def every_layer(default: int | None = None) -> Windows:
    """All layers have the window of the file; ``default`` is that of the family's class."""

    def read(keys: Keys, num_layers: int) -> list[int | None]:
        listed = typed(keys, num_layers)
        if listed is not None:
            return listed
        window = _window(keys, required=False)
        if not _stated(keys):
            shown = "null" if default is None else default
            keys.note("model_default", f"sliding_window = {shown} ({keys.family})")
            window = default
        return [window] * num_layers

    return read


def periodic(*, key: str = "sliding_window_pattern", default: int | None = None) -> Windows:
    """Every so-manyth layer sees all, the others have a window."""

    def read(keys: Keys, num_layers: int) -> list[int | None]:
        listed = typed(keys, num_layers)
        if listed is not None:
            return listed
        period = keys.raw(key)
        if period is None and default is not None:
            keys.note("model_default", f"{key} = {default} ({keys.family})")
            period = default
        window = _window(keys, required=period is not None)
        if isinstance(period, str):  # such as "LLLG"
            marks = period.upper()
            if not marks or set(marks) - set("LG"):
                keys.problem("model_pattern_unknown", key, value=period, allowed=("L", "G"))
                return [None] * num_layers
            return [window if marks[i % len(marks)] == "L" else None for i in range(num_layers)]
        if period is None:
            if window:
                keys.missing(key)
            return [None] * num_layers
        every = keys.check_size(key, period)
        return [window if (i + 1) % every else None for i in range(num_layers)]

    return read


def alternating(keys: Keys, num_layers: int) -> list[int | None]:
    """Even layers have a window, odd ones see all (Gemma 2, GPT-OSS)."""
    listed = typed(keys, num_layers)
    if listed is not None:
        return listed
    window = _window(keys, required=True)
    return [None if i % 2 else window for i in range(num_layers)]


def qwen2_windows(keys: Keys, num_layers: int) -> list[int | None]:
    """Windows in the layers from ``max_window_layers`` on, where ``use_sliding_window`` is set."""
    listed = typed(keys, num_layers)
    if listed is not None:
        return listed
    if not keys.has("use_sliding_window") or not keys.flag("use_sliding_window"):
        keys.read_all("sliding_window")
        return [None] * num_layers
    first = keys.size("max_window_layers", zero=True)
    window = _window(keys, required=True)
    return [window if i >= first else None for i in range(num_layers)]


def by_attention_types(keys: Keys, num_layers: int) -> list[int | None]:
    """``attention_types`` repeats lists of ``global`` and ``local`` (GPT-Neo)."""
    groups = keys.raw("attention_types")
    if groups is None:
        keys.missing("attention_types")
        return [None] * num_layers
    kinds: list[object] = []
    for group in groups if isinstance(groups, list) else (None,):
        if not (isinstance(group, list) and len(group) == 2 and isinstance(group[0], list)):
            keys.problem("model_key_not_names", "attention_types", value=groups)
            return [None] * num_layers
        kinds += group[0] * keys.check_size("num_hidden_layers", group[1])
    if any(kind not in ("global", "local") for kind in kinds):
        keys.problem("model_key_not_names", "attention_types", value=groups)
    if len(kinds) != num_layers:
        keys.problem("model_list_length", "attention_types", value=len(kinds), expected=num_layers)
        return [None] * num_layers
    window = keys.size("window_size") if "local" in kinds else None
    return [window if kind == "local" else None for kind in kinds]


def _window(keys: Keys, *, required: bool) -> int | None:
    """The window of the file; null and 0 both stand for none."""
    if required and not _stated(keys):
        keys.missing("sliding_window")
    return keys.size_or_none("sliding_window", zero=True) or None


def _stated(keys: Keys) -> bool:
    return any(name in keys.data for name in keys.names("sliding_window"))
