"""The rules of thumb: the guide's own numbers, the edges, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan import thumb
from meshplan.errors import UserError


@pytest.mark.parametrize(
    ("num_params_b", "num_gpus", "expected"),
    [
        (7, 8, {"dp": 4, "tp": 1, "pp": 2}),
        (13, 16, {"dp": 4, "tp": 1, "pp": 4}),
        (70, 64, {"dp": 4, "tp": 2, "pp": 8}),
        (175, 256, {"dp": 4, "tp": 8, "pp": 8}),
    ],
)
def test_recommend_gives_the_guides_answers(num_params_b, num_gpus, expected):
    degrees = thumb.recommend(num_params_b=num_params_b, num_gpus=num_gpus)
    assert degrees == expected
    assert (degrees.dp, degrees.tp, degrees.pp) == tuple(expected.values())


@given(
    num_params_b=st.floats(0.1, 300),
    num_gpus=st.integers(1, 512),
    gpu_memory_gb=st.sampled_from([24.0, 80.0, 192.0]),
)
def test_recommend_is_the_cheapest_that_fits(num_params_b, num_gpus, gpu_memory_gb):
    asked = {
        "num_params_b": num_params_b,
        "num_gpus": num_gpus,
        "gpu_memory_gb": gpu_memory_gb,
    }
    # the search spelled out again, independently of list_candidates
    best = None
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8):
            if num_gpus % (tp * pp) == 0 and num_params_b * 16 / (tp * pp) <= gpu_memory_gb:
                score = 10 * tp + 3 * pp + num_gpus / (tp * pp) / 2
                best = min(best or (math.inf,), (score, tp, pp))
    if best is None:
        with pytest.raises(UserError):
            thumb.recommend(**asked)
        return
    degrees = thumb.recommend(**asked)
    assert degrees.dp * degrees.tp * degrees.pp == num_gpus
    assert thumb.communication_score(**degrees) == best[0]


def test_nothing_fits_says_what_would():
    with pytest.raises(UserError) as caught:
        thumb.recommend(num_params_b=70, num_gpus=8)
    (problem,) = caught.value.problems
    assert problem.code == "thumb_nothing_fits"
    assert problem.numbers["least_gb"] == 70 * 16 / 8
    assert problem.numbers["enough_gpus"] == 16
    assert thumb.recommend(num_params_b=70, num_gpus=16)
    assert thumb.recommend(num_params_b=70, num_gpus=8, gpu_memory_gb=140)


def test_too_large_for_the_widest_split():
    with pytest.raises(UserError) as caught:
        thumb.recommend(num_params_b=405, num_gpus=16384)
    (problem,) = caught.value.problems
    assert problem.code == "thumb_too_large"
    assert problem.numbers["widest_gb"] == 405 * 16 / 64


def test_memory_and_score():
    assert thumb.estimate_memory_gb(num_params_b=70, tp=2, pp=8) == 70
    assert thumb.communication_score(tp=2, pp=8, dp=4) == 10 * 2 + 3 * 8 + 0.5 * 4


def test_each_bottleneck_has_its_own_cure():
    cures = {kind: thumb.dimension_for(kind) for kind in thumb.Bottleneck}
    assert cures == {"data_volume": "dp", "layer_too_large": "tp", "chain_too_long": "pp"}
    with pytest.raises(UserError) as caught:
        thumb.dimension_for("appetite")
    assert caught.value.problems[0].allowed == tuple(cures)


def test_bottlenecks_from_figures():
    assert thumb.find_bottlenecks(layer_memory_gb=3, num_layers=32) == ("data_volume",)
    assert thumb.find_bottlenecks(layer_memory_gb=90, num_layers=126) == (
        "layer_too_large",
        "chain_too_long",
    )
    assert thumb.find_bottlenecks(layer_memory_gb=90, num_layers=32, gpu_memory_gb=192) == (
        "data_volume",
    )


@pytest.mark.parametrize(
    ("num_params_b", "tier"),
    [
        (0.5, "small"),
        (1, "medium"),
        (3, "medium"),
        (7, "medium"),
        (13, "medium"),
        (40, "medium"),
        (40.1, "large"),
        (70, "large"),
        (99, "large"),
        (100, "huge"),
        (175, "huge"),
    ],
)
def test_size_tiers_leave_no_gap(num_params_b, tier):
    assert thumb.size_tier(num_params_b=num_params_b) == tier


def test_the_open_border_follows_the_node():
    assert thumb.medium_limit_b() == 8 * 80 / 16
    assert thumb.medium_limit_b(gpu_memory_gb=24) == 12
    assert thumb.medium_limit_b(gpu_memory_gb=192, gpus_per_node=72) == 100
    assert thumb.size_tier(num_params_b=30, gpu_memory_gb=24) == "large"
    assert {thumb.strategy_for(tier) for tier in thumb.SizeTier} == set(thumb.Strategy)


def test_degrees_multiply_to_the_gpus():
    assert thumb.solve_degrees(num_gpus=64, dp=4, tp=2) == {"dp": 4, "tp": 2, "pp": 8}
    assert thumb.solve_degrees(num_gpus=64, tp=8, pp=8).dp == 1
    assert thumb.solve_degrees(num_gpus=12, dp=2, tp=3, pp=2).pp == 2


@pytest.mark.parametrize(
    ("given_degrees", "code"),
    [
        ({"dp": 4}, "degrees_undetermined"),
        ({"dp": 3, "tp": 2}, "degrees_do_not_multiply"),
        ({"dp": 4, "tp": 2, "pp": 4}, "degrees_do_not_multiply"),
        ({"dp": 0, "tp": 2}, "number_not_a_count"),
    ],
)
def test_degrees_that_cannot_be(given_degrees, code):
    with pytest.raises(UserError) as caught:
        thumb.solve_degrees(num_gpus=64, **given_degrees)
    assert caught.value.problems[0].code == code


def test_how_often_each_dimension_talks():
    counts = [
        thumb.communications_per_step(dim, num_layers=10, num_micro_batches=4)
        for dim in thumb.placement_order()
    ]
    assert counts == [40, 4, 1]
    assert thumb.communication_frequency("tp") == "every_layer"


def test_the_busiest_sits_nearest():
    tp, pp, dp = thumb.place(dp=4, tp=8, pp=2)
    assert (tp.dimension, tp.stride, tp.crosses_nodes) == ("tp", 1, False)
    assert (pp.dimension, pp.stride, pp.crosses_nodes) == ("pp", 8, True)
    assert (dp.dimension, dp.stride, dp.crosses_nodes) == ("dp", 16, True)
    assert thumb.place(dp=1, tp=16, pp=1)[0].crosses_nodes
    # six ranks do not tile a node of eight, so the second group straddles two nodes
    assert thumb.place(dp=4, tp=6, pp=1)[0].crosses_nodes
    assert not any(p.crosses_nodes for p in thumb.place(dp=2, tp=2, pp=2))


@given(dp=st.integers(1, 6), tp=st.integers(1, 12), pp=st.integers(1, 6), node=st.integers(1, 12))
def test_placement_agrees_with_ranks_written_out(dp, tp, pp, node):
    for placed in thumb.place(dp=dp, tp=tp, pp=pp, gpus_per_node=node):
        starts = [
            rank for rank in range(dp * tp * pp) if (rank // placed.stride) % placed.size == 0
        ]
        nodes = [
            {(start + i * placed.stride) // node for i in range(placed.size)} for start in starts
        ]
        assert placed.crosses_nodes == any(len(group) > 1 for group in nodes)


def test_gradient_traffic_is_twice_the_model():
    assert thumb.gradient_traffic_bytes(model_bytes=140e9) == 280e9
    assert thumb.gradient_traffic_bytes(model_bytes=140e9, dp=1) == 0
    assert thumb.gradient_traffic_bytes(model_bytes=140e9, dp=4) == 210e9
    assert thumb.gradient_traffic_bytes(model_bytes=1, dp=10**6) == pytest.approx(2, rel=2e-6)


def test_speed_up():
    assert thumb.ideal_speedup(num_gpus=8) == 8
    real = thumb.real_speedup(num_gpus=8, compute_time_s=8, communication_time_s=1)
    assert real == 4
    free = thumb.real_speedup(num_gpus=8, compute_time_s=8, communication_time_s=0)
    assert free == thumb.ideal_speedup(num_gpus=8)
    assert thumb.efficiency(compute_time_s=9, communication_time_s=1) == 0.9


@pytest.mark.parametrize(
    ("pp", "num_micro_batches", "expected"), [(1, 4, 0), (8, 1, 7 / 8), (8, 32, 7 / 39)]
)
def test_bubble(pp, num_micro_batches, expected):
    assert thumb.bubble_fraction(pp=pp, num_micro_batches=num_micro_batches) == expected


@given(pp=st.integers(1, 128), max_bubble=st.floats(0.001, 0.999))
def test_fewest_micro_batches_for_a_bubble(pp, max_bubble):
    count = thumb.micro_batches_for_bubble(pp=pp, max_bubble=max_bubble)
    assert thumb.bubble_fraction(pp=pp, num_micro_batches=count) <= max_bubble
    if count > 1:
        assert thumb.bubble_fraction(pp=pp, num_micro_batches=count - 1) > max_bubble


def test_the_slowest_part_sets_the_pace():
    assert thumb.pace(part_times_s=[1, 1, 2]) == 2
    assert thumb.imbalance(part_times_s=[1, 1, 2]) == pytest.approx(1 / 3)
    assert thumb.imbalance(part_times_s=[3, 3]) == 0


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_split_products_equal_the_whole(tp):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(5, 8)), rng.normal(size=(8, 12))
    whole = x @ weight
    assert [s.shape for s in thumb.column_shards(weight, tp=tp)] == [(8, 12 // tp)] * tp
    assert [s.shape for s in thumb.row_shards(weight, tp=tp)] == [(8 // tp, 12)] * tp
    np.testing.assert_allclose(thumb.column_parallel(x, weight, tp=tp), whole, rtol=1e-12)
    np.testing.assert_allclose(thumb.row_parallel(x, weight, tp=tp), whole, rtol=1e-12)


def test_columns_then_rows_need_one_exchange():
    """Megatron's pairing: the first product stays split, only the second one is summed."""
    rng = np.random.default_rng(1)
    x, up, down = rng.normal(size=(3, 4)), rng.normal(size=(4, 8)), rng.normal(size=(8, 4))
    ups, downs = thumb.column_shards(up, tp=2), thumb.row_shards(down, tp=2)
    summed = sum(np.tanh(x @ a) @ b for a, b in zip(ups, downs, strict=True))
    np.testing.assert_allclose(summed, np.tanh(x @ up) @ down, rtol=1e-12)


def test_splits_that_cannot_be():
    with pytest.raises(UserError) as caught:
        thumb.column_parallel(np.ones((2, 4)), np.ones((4, 6)), tp=4)
    assert caught.value.problems[0].allowed == (1, 2, 3, 6)
    with pytest.raises(UserError) as caught:
        thumb.row_parallel(np.ones((2, 3)), np.ones((4, 6)), tp=1)
    assert caught.value.problems[0].code == "shapes_do_not_match"


def test_diagnose_leaves_busy_gpus_alone():
    found = thumb.diagnose(utilization=0.8, tp=16, gpus_per_node=8, stage_times_s=[1, 9])
    assert found.healthy
    assert [f.code for f in found.findings] == ["utilization_healthy"]


def test_diagnose_names_both_causes():
    found = thumb.diagnose(utilization=0.55, tp=16, gpus_per_node=8, stage_times_s=[1, 1, 2])
    across, uneven = found.findings
    assert (across.code, across.action) == ("tp_across_nodes", "keep_tp_in_node")
    assert (across.numbers["suggested_tp"], across.numbers["factor"]) == (8, 2)
    assert (uneven.code, uneven.action) == ("stages_uneven", "move_layers")
    assert uneven.numbers["stage"] == 2
    assert uneven.numbers["excess"] == pytest.approx(0.5)
    assert uneven.numbers["lost"] == pytest.approx(1 / 3)


def test_diagnose_sees_groups_that_straddle_nodes():
    found = thumb.diagnose(utilization=0.5, tp=4, gpus_per_node=6)
    assert found.findings[0].code == "tp_across_nodes"
    assert found.findings[0].numbers["suggested_tp"] == 2


def test_diagnose_points_elsewhere():
    found = thumb.diagnose(utilization=0.79, tp=8, gpus_per_node=8, stage_times_s=[1, 1.01])
    assert [f.code for f in found.findings] == ["cause_elsewhere"]
    # nothing is said of a layout that is not known
    found = thumb.diagnose(utilization=0.79, tp=None, gpus_per_node=None, stage_times_s=None)
    assert [f.code for f in found.findings] == ["cause_not_told"]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (
            lambda: thumb.estimate_memory_gb(num_params_b=math.nan, tp=1, pp=1),
            "number_not_positive",
        ),
        (lambda: thumb.estimate_memory_gb(num_params_b=-7, tp=1, pp=1), "number_not_positive"),
        (lambda: thumb.estimate_memory_gb(num_params_b=7, tp=0, pp=1), "number_not_a_count"),
        (lambda: thumb.estimate_memory_gb(num_params_b=7, tp=1.5, pp=1), "number_not_a_count"),
        (lambda: thumb.recommend(num_params_b=7, num_gpus=0), "number_not_a_count"),
        (lambda: thumb.bubble_fraction(pp=4, num_micro_batches=0), "number_not_a_count"),
        (lambda: thumb.micro_batches_for_bubble(pp=4, max_bubble=1), "number_not_a_fraction"),
        (lambda: thumb.pace(part_times_s=[]), "list_empty"),
        (lambda: thumb.imbalance(part_times_s=[1, -1]), "number_not_positive"),
        (lambda: thumb.diagnose(utilization=75, tp=1, gpus_per_node=8), "number_not_a_fraction"),
        (
            lambda: thumb.efficiency(compute_time_s=1, communication_time_s=-1),
            "number_negative",
        ),
        (lambda: thumb.strategy_for("enormous"), "unknown_choice"),
        (lambda: thumb.communication_frequency("xp"), "unknown_choice"),
    ],
)
def test_bad_numbers_are_refused(call, code):
    with pytest.raises(UserError) as caught:
        call()
    assert caught.value.problems[0].code == code


def test_all_bad_numbers_are_named_at_once():
    with pytest.raises(UserError) as caught:
        thumb.estimate_memory_gb(num_params_b=-1, tp=0, pp=math.inf)
    assert [p.where for p in caught.value.problems] == ["num_params_b", "tp", "pp"]
