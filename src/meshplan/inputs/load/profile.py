"""Read framework and cluster profiles: the shipped ones, and one that a calibration wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from meshplan.errors import UserError
from meshplan.inputs.blocks import kinds_of
from meshplan.inputs.job import LOW_PRECISIONS
from meshplan.inputs.load.profile_file import (
    NUMBERS_OF_CLUSTER,
    is_text,
    profile_presets,
    read_profile,
)
from meshplan.inputs.model import Model
from meshplan.inputs.profile import Band, ClusterProfile, FrameworkProfile, Profile, Residuals
from meshplan.inputs.scenario import Scenario
from meshplan.inputs.variants import split_variant
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.provenance import Sourced

__all__ = [
    "cluster_profile",
    "cluster_profile_names",
    "filled_numbers",
    "foreign_blocks",
    "framework_of_variant",
    "framework_profile",
    "framework_profile_names",
    "has_low_precision_experts",
    "has_runs",
    "holds",
    "idle_switches",
    "is_own",
    "profile_name",
    "profile_of",
    "rivals_of",
    "stacks_of",
    "uncovered_kinds",
    "uncovered_width",
    "variants_of",
]

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
    "fused_softmax",
    "fused_loss",
    "fused_dropout",
    "graph_attention",
    "graph_router",
    "current_scaling",
    "block_scaling",
)


def framework_profile_names() -> tuple[str, ...]:
    """Names of the framework profiles."""
    return tuple(profile_presets()["frameworks"])


def cluster_profile_names() -> tuple[str, ...]:
    """Names of the shipped cluster profiles."""
    return tuple(profile_presets()["clusters"])


def variants_of(frameworks: Collection[str]) -> tuple[str, ...]:
    """Variants and settings of some frameworks, the settings with a plus sign before each."""
    settings = profile_presets()["settings"]
    switches = [f"+{name}" for name, entry in settings.items() if entry["framework"] in frameworks]
    return (*stacks_of(frameworks), *switches)


def stacks_of(frameworks: Collection[str]) -> tuple[str, ...]:
    """Variants of some frameworks without their settings; the framework itself comes first."""
    known = profile_presets()["frameworks"]
    return tuple(name for name, entry in known.items() if entry["framework"] in frameworks)


def framework_of_variant(variant: str) -> str:
    """Return the framework that a variant, or settings without one, belong to; empty for none.

    Raises:
        UserError: ``unknown_variant`` where there is no such variant or setting, or the framework
            of the variant has no settings; ``unknown_switch`` where it has others;
            ``contradicting_switches`` where two settings exclude each other.
    """
    known, settings = profile_presets()["frameworks"], profile_presets()["settings"]
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
    for name in chosen:
        if others := [other for other in rivals_of(name) if other in chosen]:
            both = " ".join(f"+{one}" for one in chosen if one in (name, *others))
            raise UserError.of("contradicting_switches", where="variant", value=both)
    return owner


def rivals_of(name: str) -> tuple[str, ...]:
    """Settings of which a job has one or the other, such as two dispatchers of tokens."""
    settings = profile_presets()["settings"]
    choice = settings[name].get("choice")
    return tuple(
        n for n, s in settings.items() if n != name and choice and s.get("choice") == choice
    )


def idle_switches(scenario: Scenario) -> tuple[str, ...]:
    """Return the switches of the variant that concern what model and job do not have."""
    model, settings = scenario.model, profile_presets()["settings"]
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
    known, settings = profile_presets()["frameworks"], profile_presets()["settings"]
    own, chosen = split_variant(variant)
    if framework_of_variant(variant) != framework:
        own, chosen = "", ()
    name = own or framework
    entry = known[name]
    like = known[entry["like"]] if "like" in entry else {}
    stack = (profile_presets()["defaults"]["framework"], like, entry)
    # in the order of the preset, whatever the order in which they are named
    added = [s for n, s in settings.items() if n in chosen and not _holds(*stack, setting=s)]
    values, sources = _values(*stack, *added)
    for key, usual in _OTHERWISE.items():
        values.setdefault(key, values[usual])
        sources.setdefault(key, sources[usual])
    for switch in _SWITCHES:
        values[switch] = bool(values[switch])
    return FrameworkProfile(name=name, framework=framework, sources=sources, **values)


def holds(framework: str, variant: str, name: str) -> bool:
    """Whether a stack has a setting on by itself, as far as its times tell.

    Args:
        framework: whose stack it is.
        variant: the stack; what it names after a plus sign is not looked at.
        name: of the setting.
    """
    known = profile_presets()["frameworks"]
    entry = known[split_variant(variant)[0] or framework]
    like = known[entry["like"]] if "like" in entry else {}
    usual = profile_presets()["defaults"]["framework"]
    return _holds(usual, like, entry, setting=profile_presets()["settings"][name])


def _holds(*stack: Mapping[str, Any], setting: Mapping[str, Any]) -> bool:
    if (key := setting.get("told_by")) is None:
        return False
    usual, own, wanted = (_values(*layers)[0][key] for layers in (stack[:1], stack, (setting,)))
    return bool(own == wanted or abs(own - wanted) < abs(own - usual))


def cluster_profile(name: str, architecture: str = "") -> ClusterProfile:
    """Return a shipped cluster profile, or the one in a file that a calibration wrote.

    Numbers that a file leaves out are those of the profile that it began from, else of the
    default one.

    Args:
        name: of the profile or of the file, or the text of one.
        architecture: of the device; some have defaults of their own.

    Raises:
        UserError: see :func:`~meshplan.inputs.load.profile_file.read_profile`.
    """
    if not is_own(name):
        return _shipped(name, architecture)
    entry = read_profile(name)
    layers = _layers(entry.get("start") or "default", architecture)
    return _cluster("profile" if is_text(name) else name, *layers, entry)


def is_own(name: str) -> bool:
    """Whether a profile is none of the shipped ones."""
    return name not in profile_presets()["clusters"]


@lru_cache(maxsize=64)
def _shipped(name: str, architecture: str) -> ClusterProfile:
    return _cluster(name, *_layers(name, architecture))


def _layers(name: str, architecture: str) -> tuple[Mapping[str, Any], ...]:
    """What a shipped profile says, and over it what it says of one architecture."""
    entry = profile_presets()["clusters"][name] or {}
    return entry, {"fitted": (entry.get("eras") or {}).get(architecture) or {}}


def _cluster(name: str, *entries: Mapping[str, Any]) -> ClusterProfile:
    values, sources = _values(profile_presets()["defaults"]["cluster"], *entries)
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
    presets = profile_presets()
    values = dict(presets["defaults"]["band"])
    values.update((presets["frameworks"].get(framework) or {}).get("band") or {})
    entry = read_profile(cluster) if is_own(cluster) else presets["clusters"][cluster] or {}
    values.update(entry.get("band") or {})
    found = {key: float(value) for key, value in values.items()}
    experts = found.pop("experts")
    if few_bits:
        found["base"] += experts
    return Band(**found)


def profile_of(scenario: Scenario, framework: str) -> Profile:
    """Return the profile of one framework on the scenario's cluster.

    ``scenario.profile`` overrides the cluster's own; a cluster without one gets ``default``. The
    band is wider for a model with blocks that no run covers, and as without the profile for
    blocks that no run of a profile file had.
    """
    name = profile_name(scenario)
    cluster = cluster_profile(name, scenario.cluster.device.architecture)
    own, few_bits = (
        framework_profile(framework, scenario.variant),
        has_low_precision_experts(scenario),
    )
    band = _band(own.name, name, few_bits=few_bits)
    wider = uncovered_width(scenario)
    if (elsewhere := _foreign_share(scenario)) > 0.0:
        usual = _band(own.name, "default", few_bits=few_bits)
        wider += elsewhere * max(usual.base - band.base, 0.0)
    band = replace(band, base=band.base + wider)
    return Profile(framework=own, cluster=cluster, band=band, residuals=_residuals(name))


def _residuals(name: str) -> Residuals | None:
    """What measured runs took that a profile file holds; none of a shipped profile."""
    entry = read_profile(name) if is_own(name) else {}
    if entry.get("residuals") is None:
        return None
    from meshplan.inputs.load.residuals import parse_residuals

    return parse_residuals(entry["residuals"])


def filled_numbers(scenario: Scenario) -> tuple[str, ...]:
    """Numbers that a profile file leaves to the default profile."""
    name = profile_name(scenario)
    given = read_profile(name)["fitted"] if is_own(name) else NUMBERS_OF_CLUSTER
    return tuple(number for number in NUMBERS_OF_CLUSTER if number not in given)


def profile_name(scenario: Scenario) -> str:
    """Name of the cluster profile, path of its file, or its text."""
    return scenario.profile or scenario.cluster.profile or "default"


def has_runs(scenario: Scenario) -> bool:
    """Whether any measured run on chips of the device's family confirms predictions."""
    return bool(_published(scenario) | (_own(scenario) or frozenset()))


def uncovered_kinds(scenario: Scenario) -> dict[str, int]:
    """Kinds of block that no run covers, and how many blocks have each.

    What published runs on a chip family cover is found by ``tools/fit_coverage.py``; the kinds are
    those of :func:`~meshplan.inputs.blocks.kinds_of`. A profile file says what its own runs had;
    one that does not, such as one written by hand, is taken to cover what published runs do.
    """
    return dict(_without(scenario.model, _anywhere(scenario))[0])


def uncovered_width(scenario: Scenario) -> float:
    """What blocks that no run covers add to the half width of the band, as a share of the step.

    Equation: the share under ``coverage`` in the presets, times the share of such blocks.
    """
    blocks = _without(scenario.model, _anywhere(scenario))[1]
    return float(profile_presets()["coverage"]["share"]) * blocks / _num_blocks(scenario.model)


def foreign_blocks(scenario: Scenario) -> int:
    """Blocks of kinds that no run of the profile file had; none of a profile that is shipped."""
    own = _own(scenario)
    return 0 if own is None else _without(scenario.model, own)[1]


def _foreign_share(scenario: Scenario) -> float:
    """The same as a share of the blocks, for which the profile's own band says nothing."""
    return foreign_blocks(scenario) / _num_blocks(scenario.model)


def _num_blocks(model: Model) -> int:
    return max(len(model.layers), 1)


def _published(scenario: Scenario) -> frozenset[str]:
    covered = profile_presets()["coverage"]["kinds"]
    return frozenset(covered.get(scenario.cluster.device.architecture, ()))


def _own(scenario: Scenario) -> frozenset[str] | None:
    """Kinds that runs of the profile file had on this chip family; None where no file says."""
    name = profile_name(scenario)
    if name in profile_presets()["clusters"]:
        return None
    covers = read_profile(name).get("covers")
    if covers is None:
        return None
    return frozenset(covers.get(scenario.cluster.device.architecture, ()))


def _anywhere(scenario: Scenario) -> frozenset[str]:
    return _published(scenario) | (_own(scenario) or frozenset())


@lru_cache(maxsize=64)
def _without(model: Model, covered: frozenset[str]) -> tuple[tuple[tuple[str, int], ...], int]:
    """Blocks by kind that is not covered, and how many blocks have any."""
    found = [kinds_of(layer) - covered for layer in model.layers]
    kinds = Counter(kind for own in found for kind in own)
    return tuple(sorted(kinds.items())), sum(map(bool, found))
