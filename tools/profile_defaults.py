"""Default profiles as the medians of the fitted ones, with some of them left out.

A new cluster is most like the middle of those that were measured. ``python
tools/profile_defaults.py --write`` puts the medians over all fits into the presets.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, replace
from statistics import median

from fit_profiles import PRESETS, read_fits
from meshplan.inputs.load import profile as loader
from meshplan.inputs.profile import ClusterProfile, FrameworkProfile
from meshplan.inputs.variants import split_variant

# frameworks whose current behaviour is the middle of these fits
CURRENT = {
    "megatron": ("nemo", "megatron-bridge", "mlperf", "megatron-moe-2025", "simumax"),
    "deepspeed": ("internevo", "nemo", "megatron-bridge"),
    "accelerate": ("llm-foundry", "torchtitan"),
    "torchtitan": ("torchtitan", "llm-foundry"),
    "nanotron": ("nanotron", "nemo", "megatron-bridge"),
}
FSDP = ("llm-foundry", "torchtitan")
SHARED = ("fusion", "contention")
# what the host takes lies apart between fits as much as between frameworks: the middle of them all
HOST = ("launch_s", "step_s", "micro_batch_s")
# no run of these is short enough to show what the host takes: they have the same middle
HOST_UNSEEN = ("megatron-deepspeed-2021",)
# torch's own attention is slower than the tables; Megatron-LM calls the kernels of the tables
TORCH = {"accelerate": ("attention",), "torchtitan": ("attention",)}
# continuous integration runs toy models in deterministic mode
TOYS = ("nvidia-ci", "megatron-ci")
TOY_SOURCES = ("megatron-ci-golden",)
# and times that were put together from profiled parts are none of a run
NO_RUNS = (*TOYS, "vtrain-profiler")
# Blackwell reaches less of its peak than Ampere and Hopper, which reach alike
ERAS = {"blackwell": ("nvidia-blackwell", "simumax-b200")}
# and one cluster has links of its own: tensor parallelism over eight devices is slow there
LINKS = {"jean-zay": ("scale_up", "scale_out", "latency")}
# too few clusters train in 8 bits to tell eras apart
ALL_ERAS = ("low_precision",)


def fitted_on(source: str) -> tuple[set[str], set[str]]:
    """Framework and cluster profiles that were fitted on a source."""
    fits = [fit for fit in read_fits() if source in fit.sources]
    return {fit.framework for fit in fits}, {fit.cluster for fit in fits}


def cluster_medians(without: set[str]) -> dict[str, float]:
    """Median of each number over the fitted clusters, without some."""
    clusters = loader.profile_presets()["clusters"]
    values: dict[str, list[float]] = {}
    for name, entry in clusters.items():
        if name == "default" or name in without or name in NO_RUNS:
            continue
        fitted = (entry or {}).get("fitted") or {}
        of_era = any(name in names for names in ERAS.values())
        for key, value in fitted.items():
            if key in LINKS.get(name, ()) or (of_era and key not in ALL_ERAS):
                continue
            # products in 8 bits have both factors, which trade against each other in a fit
            joint = float(fitted.get("gemm", 1.0)) if key == "low_precision" else 1.0
            values.setdefault(key, []).append(joint * float(value))
    middle = {key: median(v) for key, v in values.items() if len(v) > 1}
    if "low_precision" in middle:
        middle["low_precision"] /= middle.get("gemm", 1.0)
    return {key: float(f"{value:.3g}") for key, value in middle.items()}


def era_medians(without: set[str]) -> dict[str, dict[str, float]]:
    """Median of each number over the fitted clusters of an era, without some.

    What none of them was fitted for is that of all eras: for products in 8 bits their both
    factors together.
    """
    clusters, common = loader.profile_presets()["clusters"], cluster_medians(without)
    eras = {}
    for era, names in ERAS.items():
        fits = [clusters[name]["fitted"] for name in names if name not in without]
        keys = dict.fromkeys(key for fit in fits for key in fit)
        middle = {key: median([float(fit[key]) for fit in fits if key in fit]) for key in keys}
        if "gemm" in middle and "low_precision" in common:
            joint = common["low_precision"] * common["gemm"]
            middle.setdefault("low_precision", joint / middle["gemm"])
        eras[era] = {key: float(f"{value:.3g}") for key, value in middle.items()}
    return eras


def host_times(without: set[str]) -> dict[str, list[float]]:
    """Fitted host times of all framework variants, without some."""
    frameworks = loader.profile_presets()["frameworks"]
    names = {fit.framework for fit in read_fits()} - without - {*NO_RUNS, ""}
    fits = [
        frameworks[name].get("fitted") or {} for name in names if "like" not in frameworks[name]
    ]
    return {key: [float(fitted[key]) for fitted in fits if key in fitted] for key in HOST}


def framework_medians(base: str, without: set[str]) -> dict[str, float]:
    """The same over the current variants of a framework, and host times over all variants."""
    frameworks = loader.profile_presets()["frameworks"]
    values = host_times(without)
    for name in CURRENT[base]:
        if name in without:
            continue
        # a fit that left the fusion alone says that it is one
        fitted = {"fusion": 1.0, **(frameworks[name].get("fitted") or {})}
        for key, value in fitted.items():
            if key in (*SHARED, *TORCH.get(base, ())):
                values.setdefault(key, []).append(float(value))
    if "contention" not in values:
        # only runs of FSDP hide enough traffic to show it; the kernels are the same elsewhere
        fits = [(frameworks[name].get("fitted") or {}) for name in FSDP if name not in without]
        values["contention"] = [float(fit["contention"]) for fit in fits if "contention" in fit]
    return {key: float(f"{median(v):.3g}") for key, v in values.items() if v}


def default_cluster(source: str, architecture: str) -> ClusterProfile:
    """The default for an architecture, without what was fitted on a source."""
    without = fitted_on(source)[1]
    known = {**cluster_medians(without), **era_medians(without).get(architecture, {})}
    return replace(loader.cluster_profile("default"), **known)


def default_framework(base: str, variant: str, source: str) -> FrameworkProfile:
    """What is known of a framework and its variant without runs of a source.

    What the variant overlaps and how it reduces stands in its code and stays, and so does what
    settings of the job say; numbers that were fitted to the source are those of the other variants
    instead.
    """
    without = fitted_on(source)[0]
    own = loader.framework_profile(base, variant)
    if own.name not in without:
        return own
    known = loader.profile_presets()
    like = known["frameworks"].get(known["frameworks"][own.name].get("like", ""), {})
    layers = (known["defaults"]["framework"], like, known["frameworks"][own.name])
    sourced = {name for layer in layers for name in layer.get("sourced") or {}}
    middle = loader.framework_profile(base)
    fitted = {
        f.name: getattr(middle, f.name)
        for f in fields(FrameworkProfile)
        if f.name not in (*sourced, "name", "framework", "sources", "overlap_all_reduce")
    }
    facts = {
        name: float(entry[0])
        for layer in layers
        for name, entry in (layer.get("sourced") or {}).items()
        if isinstance(getattr(own, name), float)
    }
    settings = (known["settings"][name] for name in split_variant(variant)[1])
    said = {name: getattr(own, name) for entry in settings for name in entry["sourced"]}
    return replace(own, **{**facts, **fitted, **framework_medians(base, without), **said})


def main() -> None:
    """Print the medians, and write them."""
    text = PRESETS.read_text("utf-8")
    head, sep, tail = text.partition("clusters:\n")
    line = ", ".join(f"{k}: {v:g}" for k, v in cluster_medians(set()).items())
    print("default cluster:", line)
    made = f"  default:\n    fitted: {{{line}}}\n    eras:\n"
    for era, numbers in era_medians(set()).items():
        line = ", ".join(f"{k}: {v:g}" for k, v in numbers.items())
        print(f"default cluster, {era}:", line)
        made += f"      {era}: {{{line}}}\n"
    tail = re.sub(r"  default:\n    fitted: \{.*\}\n(?:    eras:\n(?:      .*\n)*)?", made, tail)
    bases = ("megatron", "deepspeed", "accelerate")
    numbers_of = {base: framework_medians(base, set()) for base in bases}
    hosts = {key: float(f"{median(values):.3g}") for key, values in host_times(set()).items()}
    for name, numbers in {**numbers_of, **dict.fromkeys(HOST_UNSEEN, hosts)}.items():
        line = ", ".join(f"{k}: {v:g}" for k, v in numbers.items())
        print(f"{name}:", line)
        pattern = rf"(\n  {name}:\n(?:    .*\n)*?    fitted: )\{{.*\}}"
        head = re.sub(pattern, rf"\g<1>{{{line}}}", head, count=1)
    if "--write" in sys.argv:
        PRESETS.write_text(head + sep + tail, "utf-8")


if __name__ == "__main__":
    main()
