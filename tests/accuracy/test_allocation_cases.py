"""Allocations of real out-of-memory reports, and the tensors that they were for."""

import pytest
import yaml

from cost_scenarios import plan
from meshplan.diagnose.allocation import decode_allocation, parse_allocation
from meshplan.errors import UserError
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.plain_model import plain_model
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework
from meshplan.units import GIB, MIB


@pytest.fixture(scope="module")
def cases(shared):
    path = shared / "data" / "cases" / "cases.yaml"
    content = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    return {case["id"]: case for case in content["cases"]}


def scenario_of(case, *, seq_len, **job):
    given, cluster = case["inputs"]["model"], case["inputs"]["cluster"]
    gated = given.get("gated_mlp", not given["tied"])
    return Scenario(
        model=plain_model(
            name=given["name"],
            num_layers=given["layers"],
            hidden=given["hidden"],
            ffn_hidden=given["ffn"],
            num_heads=given["heads"],
            num_kv_heads=given.get("kv_heads", given["heads"]),
            vocab=given["vocab"],
            gated=gated,
            tied=given["tied"],
            norm="rmsnorm" if gated else "layernorm",
            num_positions=0 if gated else 1024,
        ),
        cluster=parse_cluster(f"{cluster['gpus']}x{cluster['gpu'].split('-')[0]}"),
        job=Job(seq_len=seq_len, global_batch=64, **job),
    )


def expected(case, metric):
    return next(e for e in case["expect"] if e["metric"] == metric)


def test_a01_partition_of_an_unfused_adam(cases):
    case = cases["A01"]
    scenario = scenario_of(case, seq_len=1024, precision="fp16", task="full_finetune")
    layout = plan(8, framework=Framework.DEEPSPEED, zero=2, micro_batch=1)
    size = parse_allocation(f"{case['observed']['failed_alloc_gib']} GiB")
    first = decode_allocation(size, scenario, layout)[0]
    assert (first.code, first.element_bytes, first.exact) == ("partition", 4, True)
    wanted = expected(case, "optimizer_step_temp_gib")
    assert first.num_bytes / GIB == pytest.approx(wanted["value"], rel=wanted["rel_tol"])


def test_a02_a_quarter_of_the_parameters_in_fp32(cases):
    case = cases["A02"]
    scenario = scenario_of(case, seq_len=case["inputs"]["job"]["seq"], task="full_finetune")
    layout = plan(4, framework=Framework.DEEPSPEED, zero=2, micro_batch=1)
    first = decode_allocation(parse_allocation("12.94 GiB"), scenario, layout)[0]
    assert (first.code, first.element_bytes, first.exact) == ("partition", 4, True)
    wanted = expected(case, "failed_alloc_gib")
    assert first.num_bytes / GIB == pytest.approx(wanted["value"], rel=wanted["rel_tol"])


def test_a14_fp32_logits_tell_the_micro_batch(cases):
    case = cases["A14"]
    scenario = scenario_of(case, seq_len=1024, precision="fp16", attention="unfused")
    layout = plan(1, framework=Framework.MEGATRON, micro_batch=1)
    size = parse_allocation(f"{case['observed']['failed_alloc_mib']}.00 MiB")
    first = decode_allocation(size, scenario, layout)[0]
    assert (first.code, first.element_bytes, first.exact) == ("logits", 4, True)
    assert first.micro_batch == case["inputs"]["job"]["mbs"]
    assert not first.same_plan  # the layout was given without it
    assert first.shape == (4096, expected(case, "padded_vocab")["value"])
    wanted = expected(case, "fp32_logits_mib")
    assert first.num_bytes / MIB == pytest.approx(wanted["value"], rel=wanted["rel_tol"])


def test_sizes_as_messages_print_them():
    size = parse_allocation("12.94 GiB")
    assert size.num_bytes == 12.94 * GIB
    assert size.resolution_bytes == pytest.approx(0.005 * GIB)
    assert parse_allocation("786.00 MiB").num_bytes == 786 * MIB
    message = "CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 31.75 GiB total capacity)"
    assert parse_allocation(message) == parse_allocation("786.00 MiB")
    assert parse_allocation("2097152").num_bytes == 2 * MIB
    for odd in ("", "much", "-1 GiB", "0 MiB", "1.2.3 GiB", "1e9", "NaN GiB"):
        with pytest.raises(UserError, match="allocation_size"):
            parse_allocation(odd)


def test_a_size_of_nothing_names_nothing(cases):
    scenario = scenario_of(cases["A01"], seq_len=1024)
    layout = plan(8, framework=Framework.DEEPSPEED, zero=2, micro_batch=1)
    assert decode_allocation(parse_allocation("91.77 TiB"), scenario, layout) == ()


def test_every_match_has_the_size_that_it_claims(cases):
    scenario = scenario_of(cases["A02"], seq_len=1536)
    layout = plan(4, framework=Framework.MEGATRON, tp=2, pp=2, micro_batch=2)
    for text in ("736.00 MiB", "96.00 MiB", "120.00 MiB", "2.94 GiB"):
        for found in decode_allocation(parse_allocation(text), scenario, layout):
            elements = 1
            for extent in found.shape:
                elements *= extent
            assert found.num_bytes == elements * found.element_bytes
            assert abs(found.error) <= 0.01 or found.exact
