"""Read framework and cluster profiles: the shipped ones, and one that a calibration wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from meshplan.errors import UserError, os_reason
from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.job import LOW_PRECISIONS
from meshplan.inputs.load.opening import is_there, read_bytes
from meshplan.inputs.load.presets import PRESETS
from meshplan.inputs.load.residuals import check_residuals, is_number, parse_residuals
from meshplan.inputs.model import Model
from meshplan.inputs.profile import Band, ClusterProfile, FrameworkProfile, Profile, Residuals
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.inputs.vocabulary import FRAMEWORKS, unknown
from meshplan.provenance import Sourced

__all__ = [
    "cluster_profile",
    "cluster_profile_names",
    "framework_of_variant",
    "framework_profile",
    "framework_profile_names",
    "has_low_precision_experts",
    "has_runs",
    "idle_switches",
    "profile_of",
    "stacks_of",
    "uncovered_kinds",
    "uncovered_width",
    "variants_of",
]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES = 1_000_000
_OF_FILE = ("fitted", "fitted_by", "band", "residuals")
"""What a profile file holds."""
_SPEEDS = ("gemm", "low_precision", "attention", "memory_bound", "scale_up", "scale_out")
_LEAST_SPEED, _MOST = 1e-6, 1e6
_MOST_WIDTH, _MOST_BAND_BYTES = 1e3, 1e12
"""Half widths of bands beyond which they say nothing: of a step in steps, of memory."""
_FITTED_BY = "tools/fit_profiles.py on the fit side of tests/accuracy/split.csv"

_OTHERWISE = {
    "overlap_all_reduce": "overlap_gradients",
    "all_reduce_bytes": "gradient_bytes",
    "contention_experts": "contention",
}
"""What a framework does without ZeRO or with experts, and what that is where no profile says."""
_SWITCHES = (
    "blocking_sends",
    "quantised_gathers",
    "reduces_whole",
    "deduplicated_dispatch",
    "ampere_attention",
    "fused_loss",
    "graph_attention",
    "graph_router",
    "current_scaling",
)


@lru_cache(maxsize=1)
def _presets() -> dict[str, Any]:
    text = (PRESETS / "profiles.yaml").read_text("utf-8")
    presets: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return presets


def framework_profile_names() -> tuple[str, ...]:
    """Names of the framework profiles."""
    return tuple(_presets()["frameworks"])


def cluster_profile_names() -> tuple[str, ...]:
    """Names of the shipped cluster profiles."""
    return tuple(_presets()["clusters"])


def variants_of(frameworks: Collection[str]) -> tuple[str, ...]:
    """Variants and settings of some frameworks, the settings with a plus sign before each."""
    settings = _presets()["settings"]
    switches = [f"+{name}" for name, entry in settings.items() if entry["framework"] in frameworks]
    return (*stacks_of(frameworks), *switches)


def stacks_of(frameworks: Collection[str]) -> tuple[str, ...]:
    """Variants of some frameworks without their settings; the framework itself comes first."""
    known = _presets()["frameworks"]
    return tuple(name for name, entry in known.items() if entry["framework"] in frameworks)


def framework_of_variant(variant: str) -> str:
    """Return the framework that a variant, or settings without one, belong to; empty for none.

    Raises:
        UserError: ``unknown_variant`` where there is no such variant or setting, or the framework
            of the variant has no settings; ``unknown_switch`` where it has others.
    """
    known, settings = _presets()["frameworks"], _presets()["settings"]
    own, chosen = split_variant(variant)
    if not own and not chosen:
        return ""
    first = known.get(own) if own else settings.get(chosen[0])
    owner: str = first["framework"] if first else ""
    unknown = [name for name in chosen if settings.get(name, {}).get("framework") != owner]
    if not owner or unknown:
        allowed = variants_of((owner,) if owner else FRAMEWORKS)
        switches = [name for name in allowed if name.startswith("+")]
        if owner and switches:
            raise UserError.of(
                "unknown_switch",
                where="variant",
                value=f"+{unknown[0]}",
                allowed=switches,
                framework=owner,
            )
        raise UserError.of("unknown_variant", where="variant", value=variant, allowed=allowed)
    return owner


def idle_switches(scenario: Scenario) -> tuple[str, ...]:
    """Return the switches of the variant that concern what model and job do not have."""
    model, settings = scenario.model, _presets()["settings"]
    has = {
        "experts": model.is_moe,
        "attention": model.has_attention,
        "fp8": scenario.job.precision == "fp8",
        None: True,
    }
    chosen = split_variant(scenario.variant)[1]
    return tuple(name for name in chosen if not has[settings[name].get("concerns")])


@lru_cache(maxsize=64)
def framework_profile(framework: str, variant: str = "") -> FrameworkProfile:
    """Return the profile of a framework, of the variant where that describes this framework.

    A variant may be followed by settings of the job that change what the framework does, each
    with a plus sign before it: ``megatron-bridge+alltoall+graph-router``.

    Raises:
        UserError: ``unknown_variant``, see :func:`framework_of_variant`.
    """
    known, settings = _presets()["frameworks"], _presets()["settings"]
    own, chosen = split_variant(variant)
    if framework_of_variant(variant) != framework:
        own, chosen = "", ()
    name = own or framework
    entry = known[name]
    like = known[entry["like"]] if "like" in entry else {}
    added = [settings[setting] for setting in chosen]
    values, sources = _values(_presets()["defaults"]["framework"], like, entry, *added)
    for key, usual in _OTHERWISE.items():
        values.setdefault(key, values[usual])
        sources.setdefault(key, sources[usual])
    for switch in _SWITCHES:
        values[switch] = bool(values[switch])
    return FrameworkProfile(name=name, framework=framework, sources=sources, **values)


def cluster_profile(name: str, architecture: str = "") -> ClusterProfile:
    """Return a shipped cluster profile, or the one in a file that a calibration wrote.

    Args:
        name: of the profile or of the file.
        architecture: of the device; some have defaults of their own.

    Raises:
        UserError: ``unknown_profile`` when there is neither; ``profile_unreadable`` when the file
            is no YAML, ``bad_profile``, ``bad_band`` or ``bad_residuals`` when it is not a
            profile.
    """
    if name in _presets()["clusters"]:
        return _shipped(name, architecture)
    path = Path(name)
    if not is_there(path) or path.is_dir():
        raise UserError.of(
            "unknown_profile", where="profile", value=name, allowed=cluster_profile_names()
        )
    return _cluster(name, _read(path))


@lru_cache(maxsize=64)
def _shipped(name: str, architecture: str) -> ClusterProfile:
    entry = _presets()["clusters"][name] or {}
    own = (entry.get("eras") or {}).get(architecture) or {}
    return _cluster(name, entry, {"fitted": own})


def _read(path: Path) -> Mapping[str, Any]:
    """Read a profile file, which may have changed since it was last read."""
    try:
        data = read_bytes(path, most_bytes=_MOST_BYTES)
    except OSError as error:
        reason = os_reason(error)
        raise UserError.of("profile_unreadable", where=str(path), os_reason=reason) from error
    return _parsed(data, where=str(path))


@lru_cache(maxsize=16)
def _parsed(data: bytes, *, where: str) -> Mapping[str, Any]:
    """Read what a profile file holds and check its keys and numbers."""
    try:
        entry = yaml.load(data.decode("utf-8"), Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = "YAMLError" if isinstance(error, yaml.YAMLError) else os_reason(error)
        raise UserError.of("profile_unreadable", where=where, os_reason=reason) from error
    fitted = entry.get("fitted") if isinstance(entry, dict) else None
    allowed = _numbers(ClusterProfile)
    if not isinstance(fitted, dict):
        raise UserError.of("bad_profile", where=where, value="fitted", allowed=allowed)
    for key in entry:
        if key not in _OF_FILE:
            raise unknown("unknown_key", where=f"{where}: {key}", value=str(key), names=_OF_FILE)
    for key, value in fitted.items():
        least = _LEAST_SPEED if key in _SPEEDS else 0.0
        most = 1.0 if key == "stall_share" else _MOST
        if key not in allowed or not is_number(value) or not least <= value <= most:
            at = f"{where}: fitted.{key}"
            raise UserError.of("bad_profile", where=at, value=value, allowed=allowed)
    _check_band(entry.get("band"), where=f"{where}: band")
    check_residuals(entry.get("residuals"), where=f"{where}: residuals")
    checked: Mapping[str, Any] = entry
    return checked


def _check_band(band: Any, *, where: str) -> None:
    """Check the band of a profile file, which may have none."""
    if band is None:
        return
    allowed = tuple(_presets()["defaults"]["band"])
    if not isinstance(band, dict):
        raise UserError.of("bad_band", where=where, value=band, allowed=allowed)
    for key, value in band.items():
        most = _MOST_BAND_BYTES if key == "memory_fixed_bytes" else _MOST_WIDTH
        if key not in allowed or not is_number(value) or not 0 <= value <= most:
            raise UserError.of("bad_band", where=f"{where}.{key}", value=value, allowed=allowed)


def _numbers(record: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record) if f.name not in ("name", "sources"))


def _cluster(name: str, *entries: Mapping[str, Any]) -> ClusterProfile:
    values, sources = _values(_presets()["defaults"]["cluster"], *entries)
    return ClusterProfile(name=name, sources=sources, **values)


def _values(*layers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Sourced]]:
    """Merge entries, the later ones over the earlier ones."""
    values: dict[str, Any] = {}
    sources: dict[str, Sourced] = {}
    for layer in layers:
        for key, (value, source) in (layer.get("sourced") or {}).items():
            values[key] = float(value)
            sources[key] = Sourced(value=float(value), unit="1", source=source, kind="published")
        by = str(layer.get("fitted_by", _FITTED_BY))
        for key, value in (layer.get("fitted") or {}).items():
            values[key] = float(value)
            unit = "s" if key.endswith("_s") else "1"
            sources[key] = Sourced(value=float(value), unit=unit, source=by, kind="fitted")
    return values, sources


def has_low_precision_experts(scenario: Scenario) -> bool:
    """Whether experts multiply in 8 bits or fewer, with kernels that no table of ours has."""
    return scenario.model.is_moe and scenario.job.precision in LOW_PRECISIONS


def _band(framework: str, cluster: str, *, few_bits: bool = False) -> Band:
    """Band of a framework on a cluster: the cluster's own where it has one.

    Where experts multiply in few bits, the share that they add counts for the whole step.
    """
    presets = _presets()
    values = dict(presets["defaults"]["band"])
    values.update((presets["frameworks"].get(framework) or {}).get("band") or {})
    entry = presets["clusters"].get(cluster)
    if entry is None and cluster:
        entry = _read(Path(cluster))
    values.update((entry or {}).get("band") or {})
    found = {key: float(value) for key, value in values.items()}
    experts = found.pop("experts")
    if few_bits:
        found["base"] += experts
    return Band(**found)


def uncovered_kinds(scenario: Scenario) -> dict[str, int]:
    """Kinds of block that no run of the device's chip family covers, and how many blocks have each.

    What counts as covered is found by ``tools/fit_coverage.py``; the kinds are those of
    :func:`~meshplan.inputs.blocks.kinds_of`. A profile of the user's own runs covers all.
    """
    if _own_runs(scenario):
        return {}
    return dict(_uncovered(scenario.model, scenario.cluster.device.architecture)[0])


def has_runs(architecture: str) -> bool:
    """Whether any measured run on chips of a family confirms predictions."""
    return bool(_covered(architecture))


def uncovered_width(scenario: Scenario) -> float:
    """What blocks that no run covers add to the half width of the band, as a share of the step.

    Equation: the share under ``coverage`` in the presets, times the share of such blocks.
    """
    if _own_runs(scenario):
        return 0.0
    share = _uncovered(scenario.model, scenario.cluster.device.architecture)[1]
    return float(_presets()["coverage"]["share"]) * share


def _covered(architecture: str) -> frozenset[str]:
    return frozenset(_presets()["coverage"]["kinds"].get(architecture, ()))


def _own_runs(scenario: Scenario) -> bool:
    name = scenario.profile or scenario.cluster.profile or "default"
    return name not in _presets()["clusters"]


@lru_cache(maxsize=64)
def _uncovered(model: Model, architecture: str) -> tuple[tuple[tuple[str, int], ...], float]:
    """Blocks by kind that is not covered, and the share of blocks that have any."""
    found = [kinds_of(layer) - _covered(architecture) for layer in model.layers]
    kinds = Counter(kind for own in found for kind in own)
    return tuple(sorted(kinds.items())), sum(map(bool, found)) / max(len(found), 1)


def profile_of(scenario: Scenario, framework: str) -> Profile:
    """Return the profile of one framework on the scenario's cluster.

    ``scenario.profile`` overrides the cluster's own; a cluster without one gets ``default``. The
    band is wider for a model with blocks that no run covers.
    """
    name = scenario.profile or scenario.cluster.profile or "default"
    cluster = cluster_profile(name, scenario.cluster.device.architecture)
    own = framework_profile(framework, scenario.variant)
    band = _band(own.name, cluster.name, few_bits=has_low_precision_experts(scenario))
    band = replace(band, base=band.base + uncovered_width(scenario))
    return Profile(framework=own, cluster=cluster, band=band, residuals=_residuals(cluster.name))


def _residuals(cluster: str) -> Residuals | None:
    """What measured runs took that a profile file holds; none of a shipped profile."""
    if cluster in _presets()["clusters"]:
        return None
    return parse_residuals(_read(Path(cluster)).get("residuals"))
