"""Scenarios survive being written and read; whatever is wrong with one is said, never a crash."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from meshplan.app.cli.complaints import describe
from meshplan.errors import UserError
from meshplan.inputs.cluster import Cluster, Device, Fabric, Tier
from meshplan.inputs.job import Job, Optimizer, Precision, Task
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.network import parse_network
from meshplan.inputs.load.nodes import node_names
from meshplan.inputs.load.presets import device_names, load_device
from meshplan.inputs.load.quantity import (
    bandwidth_text,
    duration_text,
    flop_rate_text,
    memory_text,
    parse_bandwidth,
    parse_duration,
    parse_flop_rate,
    parse_memory,
)
from meshplan.inputs.load.scenario import apply_settings, dump_scenario, load_scenario
from meshplan.inputs.scenario import Objective, Scenario
from meshplan.inputs.vocabulary import AXES, FRAMEWORKS

SLOW = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
MODELS = tuple(load_model(name) for name in ("llama-3.1-8b", "llama-3.1-70b", "gpt3-175b"))

names = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_. /:#'\"你好", min_size=1, max_size=12)
names = names.filter(lambda text: text.strip() == text and not text.endswith((".yaml", ".yml")))
# what hardware can be, see presets/bounds.yaml
links, bandwidths, peak_rates = st.floats(1e5, 1e15), st.floats(1e9, 1e18), st.floats(1e9, 1e19)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    if draw(st.booleans()):
        return load_device(draw(st.sampled_from(device_names())))
    memory = draw(st.floats(1e10, 1e13))
    peaks = draw(st.dictionaries(st.sampled_from(get_args(Precision)), peak_rates))
    # attention among others runs in 16 bits whatever the precision of the job
    peaks[draw(st.sampled_from(("bf16", "fp16")))] = draw(peak_rates)
    return Device(
        name=draw(names),
        vendor=draw(names),
        architecture=draw(names),
        memory_bytes=memory,
        usable_bytes=memory * draw(st.floats(0.01, 1.0)),
        memory_bandwidth_bytes_per_s=draw(bandwidths),
        peak_flop_per_s=peaks,
        num_sms=draw(st.integers(1, 1000)),
        kernel_table=draw(st.sampled_from((None, "a100_sxm", "gb300"))),
        sources=draw(st.dictionaries(names, names, max_size=2)),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    price = draw(st.none() | st.floats(0.01, 1e4))
    profile = draw(st.sampled_from(("default", "selene", "meta")))
    if draw(st.booleans()):
        kind = draw(st.sampled_from((*device_names(), *node_names())))
        made = parse_cluster(f"{draw(st.integers(1, 100))}x{kind}")
    else:
        machine = draw(st.integers(1, 1000))
        factors = draw(st.lists(st.integers(2, 9), max_size=3))
        sizes = [*accumulate(factors, mul, initial=machine)]
        parts = draw(st.sets(st.integers(1, machine), max_size=2)) - {machine}
        sizes = [*sorted(parts), *sizes, sizes[-1] + draw(st.integers(1, 1000))]
        tiers = [
            Tier(
                name=draw(names),
                fabric=draw(st.sampled_from(get_args(Fabric))),
                num_gpus=size,
                bandwidth_bytes_per_s=draw(links),
                latency_s=draw(st.floats(1e-9, 1.0)),
                oversubscription=draw(st.floats(1, 100)),
                in_network_reduction=draw(st.booleans()),
                nics_per_node=draw(st.integers(0, 64)),
            )
            for size in sizes
        ]
        made = Cluster(
            name=draw(names),
            device=draw(devices()),
            num_gpus=sizes[-1],
            gpus_per_node=machine,
            tiers=tuple(tiers),
            host_memory_bytes=draw(st.floats(1e9, 1e14)),
            host_link_bytes_per_s=draw(links),
            host_time_factor=draw(st.floats(0.01, 100)),
            assumptions=tuple(draw(st.lists(st.tuples(names, names), max_size=2))),
        )
    return replace(made, device=replace(made.device, usd_per_hour=price), profile=profile)


@st.composite
def jobs(draw: st.DrawFn, precision: str) -> Job:
    task = draw(st.sampled_from(get_args(Task)))
    tokens = draw(st.none() | st.floats(1, 1e17))
    return Job(
        seq_len=draw(st.integers(1, 10**7)),
        global_batch=draw(st.integers(1, 10**6)),
        precision=precision,  # type: ignore[arg-type]
        optimizer=draw(st.sampled_from(get_args(Optimizer))),
        task=task,
        lora_rank=draw(st.integers(1, 512)) if "lora" in task else 0,
        lora_targets=draw(st.sampled_from(("attention", "mlp", "all")))
        if "lora" in task
        else "all",
        total_tokens=tokens,
        deadline_days=draw(st.none() | st.floats(0.01, 1e5)) if tokens else None,
        attention=draw(st.sampled_from(("flash", "unfused"))),
        dropout=draw(st.booleans()),
    )


def axis_values(name: str) -> st.SearchStrategy[Any]:
    axis = AXES[name]
    if axis.kind == "count":
        return st.integers(axis.minimum, axis.maximum or 10**6)
    if axis.kind == "flag":
        return st.booleans()
    assert axis.names is not None
    plain = st.sampled_from((*axis.names, *axis.extra))
    return plain | st.integers(1, 999).map(lambda n: f"full:{n}") if axis.suffix else plain


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    cluster = draw(clusters())
    precisions = [p for p in get_args(Precision) if p in cluster.device.peak_flop_per_s]
    picked = draw(st.sets(st.sampled_from(sorted(AXES)), max_size=4))
    frameworks = draw(st.lists(st.sampled_from(tuple(FRAMEWORKS)), min_size=1, unique=True))
    return Scenario(
        model=draw(st.sampled_from(MODELS)),
        cluster=cluster,
        job=draw(jobs(draw(st.sampled_from(precisions)))),
        frameworks=tuple(frameworks),
        axes={
            name: tuple(draw(st.lists(axis_values(name), min_size=1, max_size=4, unique=True)))
            for name in sorted(picked)
        },
        objective=draw(st.sampled_from(get_args(Objective))),
        profile=draw(st.sampled_from(("", "default", "selene"))),
        variant=draw(st.sampled_from(("", "megatron-2021"))) if "megatron" in frameworks else "",
    )


@SLOW
@given(scenarios())
def test_what_is_written_reads_back_the_same(scenario: Scenario) -> None:
    text = dump_scenario(scenario)
    assert load_scenario(text) == scenario
    assert dump_scenario(load_scenario(text)) == text


@given(st.floats(1e-3, 1e18))
def test_quantities_read_back_to_the_last_bit(value: float) -> None:
    assert parse_bandwidth(bandwidth_text(value)) == value
    assert parse_memory(memory_text(value)) == value
    assert parse_flop_rate(flop_rate_text(value)) == value
    assert parse_duration(duration_text(value * 1e-9)) == value * 1e-9


# --- mutations --------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {
        "device": {"base": "H100", "memory": "64 GiB", "peaks": {"bf16": "500 TFLOP/s"}},
        "gpus": 64,
        "gpus_per_node": 8,
        "tiers": [
            {"fabric": "nvlink", "gpus": 8, "bandwidth_per_gpu": "450 GB/s", "latency": "1 us"},
            {"fabric": "ib", "bandwidth_per_nic": "400 Gb/s", "nics_per_node": 4},
        ],
        "host_memory": "2 TB",
        "usd_per_gpu_hour": 2.5,
        "assumptions": [["cluster_node", "dgx-h100"]],
    },
    "job": {"seq_len": 4096, "global_batch": 512, "total_tokens": "15T", "task": "lora"},
    "axes": {"tp": [1, 2], "schedule": ["1f1b"], "recompute": ["full:4"], "sp": [True]},
    "frameworks": ["megatron"],
    "objective": "fastest",
}

odd = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.sampled_from([0, -1, 1e308, math.nan, math.inf, "", " ", "nan", "0x10", "1e999", "64xH100",
                       "64 GB", "64 Gb", "1 GB/s", "full:0", "a+b", "[", "{x}", "{where}", "%s",
                       "\0", "../..", "no", "H100", "1" * 5000, 10**5000])
    | st.text(max_size=20)
    | st.lists(st.integers(-2, 9), max_size=3)
    | st.dictionaries(st.text(max_size=5), st.integers(-2, 9), max_size=3)
)  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            found += paths(item, (*path, key))
    return found


PATHS = paths(GOOD)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(PATHS))
        place: Any = data
        try:
            for key in path[:-1]:
                place = place[key]
            match draw(st.sampled_from(["change", "remove", "add", "rename"])):
                case "change":
                    place[path[-1]] = draw(odd)
                case "remove":
                    del place[path[-1]]
                case "add":
                    place[draw(st.text(max_size=8) | st.integers(0, 3))] = draw(odd)
                case "rename":
                    place[str(path[-1])[:-1]] = place.pop(path[-1])
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier mutation took the place away
    return data


def is_said(error: UserError) -> None:
    """Every problem makes a sentence and a hint in both languages."""
    for problem in error.problems:
        for lang in ("en", "zh"):
            said = describe(problem, lang)
            assert said["message"] and said["hint"]
            assert len(said["message"]) < 2000


@pytest.mark.parametrize("odd", ["\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u3000"])
def test_a_count_between_any_spaces_is_read(odd: str) -> None:
    """``str.strip`` takes more for space than ``int`` does."""
    scenario = copy.deepcopy(GOOD)
    scenario["job"]["global_batch"] = f"{odd}512{odd}"
    scenario["axes"]["tp"] = f"8{odd}"
    read = load_scenario(scenario)
    assert read.job.global_batch == 512
    assert read.axes["tp"] == (8,)


@settings(deadline=None, max_examples=600)
@given(mutated())
def test_mutations_are_refused_or_read_never_a_crash(data: dict[str, Any]) -> None:
    try:
        scenario = load_scenario(data)
    except UserError as error:
        is_said(error)
    else:
        assert load_scenario(dump_scenario(scenario)) == scenario


@settings(deadline=None, max_examples=200)
@given(mutated(), st.data())
def test_damaged_yaml_is_refused_or_read_never_a_crash(data: Any, source: st.DataObject) -> None:
    try:
        text = yaml.safe_dump(data, allow_unicode=True)
    except ValueError:  # a number of more digits than Python prints
        reject()
    at = source.draw(st.integers(0, len(text)))
    cut = source.draw(st.integers(0, 30))
    inserted = source.draw(
        st.text(max_size=5) | st.sampled_from(["\t", "&a ", "*a", "- ", ": ", "{"])
    )
    try:
        load_scenario(f"{text[:at]}{inserted}{text[at + cut :]}\n")
    except UserError as error:
        is_said(error)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_any_text_is_no_crash(text: str) -> None:
    for read in (parse_cluster, parse_network, load_device, lambda t: load_scenario(f"{t}\n")):
        try:
            read(text)
        except UserError as error:
            is_said(error)


dotted = st.sampled_from([".".join(map(str, path)) for path in PATHS]) | st.text(
    "abc.-=[0", max_size=9
)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(dotted, st.text(max_size=12)).map("=".join), max_size=3))
def test_any_settings_are_no_crash(given_settings: list[str]) -> None:
    before = copy.deepcopy(GOOD)
    try:
        load_scenario(apply_settings(GOOD, given_settings))
    except UserError as error:
        is_said(error)
    assert before == GOOD, "what was given stays"
