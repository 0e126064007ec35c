"""What a scenario pins, and what the enumeration says about the rest."""

import numpy as np
import pytest

from meshplan.space.plan import Framework, Recompute, Schedule
from space_scenarios import dense_model, enumerate_plans, moe_model, scenario


def dense(num_gpus: int = 16, **changes):
    return scenario(dense_model(num_layers=8), num_gpus=num_gpus, **changes)


def values(grid, name: str) -> set[int]:
    return set(getattr(grid, name).tolist())


def test_pins_restrict_the_product():
    axes = {"tp": (2,), "pp": (1, 2), "schedule": ("1f1b",), "recompute": ("none", "full:2")}
    found = enumerate_plans(dense(axes=axes))
    assert values(found.grid, "tp") == {2}
    assert values(found.grid, "pp") == {1, 2}
    assert values(found.grid, "schedule") == {Schedule.ONE_F_ONE_B}
    pairs = set(
        zip(found.grid.recompute.tolist(), found.grid.recompute_layers.tolist(), strict=True)
    )
    assert pairs == {(Recompute.NONE, 0), (Recompute.FULL, 2)}
    assert found.num_candidates < enumerate_plans(dense()).num_candidates


def test_pinned_values_need_not_make_sense():
    found = enumerate_plans(dense(axes={"tp": (3,)}))
    assert found.num_legal == 0
    assert set(found.rejected) == {"tp_divides_heads"}
    assert found.rejected["tp_divides_heads"].count == found.num_candidates


def test_derived_fields_can_be_pinned():
    free = enumerate_plans(dense())
    found = enumerate_plans(dense(axes={"dp": (4,), "num_micro_batches": (8,)}))
    assert values(found.grid, "dp") == {4}
    assert values(found.grid, "num_micro_batches") == {8}
    assert found.num_candidates == free.num_candidates
    assert found.rejected["outside_pinned_values"].count > 0
    same = (free.grid.dp == 4) & (free.grid.num_micro_batches == 8)
    assert found.num_legal == int(np.count_nonzero(same))


def test_frameworks_add_up():
    names = [f.name.lower() for f in Framework]
    alone = [enumerate_plans(dense(frameworks=(name,))) for name in names]
    together = enumerate_plans(dense(frameworks=tuple(names)))
    assert together.num_candidates == sum(found.num_candidates for found in alone)
    assert together.num_legal == sum(found.num_legal for found in alone)
    assert values(together.grid, "framework") == {int(f) for f in Framework}
    heads = sum(f.rejected["vpp_matches_schedule"].count for f in alone[:2])
    assert together.rejected["vpp_matches_schedule"].count == heads


@pytest.mark.parametrize("num_gpus", [1, 6, 7, 12, 24, 100])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_any_number_of_gpus_has_a_plan(num_gpus, framework):
    found = enumerate_plans(
        scenario(
            dense_model(num_layers=24, heads=24),
            num_gpus=num_gpus,
            global_batch=4200,
            frameworks=(framework,),
        )
    )
    assert found.num_legal > 0
    product = found.grid.tp * found.grid.pp * found.grid.cp * found.grid.dp
    assert values(found.grid, "dp") and (product == num_gpus).all()


def test_a_batch_that_nothing_divides_is_said():
    found = enumerate_plans(
        dense(num_gpus=16, global_batch=1, axes={"tp": (1,), "pp": (1,), "cp": (1,)})
    )
    assert found.num_legal == 0
    assert found.rejected["batch_divides"].example.dp == 16


def test_experts_fold_over_any_part_of_the_grid():
    grid = enumerate_plans(scenario(moe_model(), num_gpus=16)).grid
    assert values(grid, "ep") == {1, 2, 4, 8}
    assert values(grid, "etp") >= {1, 2, 4}
    wide = (grid.ep > grid.dp) & (grid.cp > 1)
    assert wide.any(), "expert groups span tensor- and context-parallel ranks"


def test_very_large_numbers_do_not_overflow():
    found = enumerate_plans(dense(num_gpus=16, axes={"tp": (1, 2**40), "cp": (1,)}))
    assert values(found.grid, "tp") == {1}


def test_plans_without_effect_are_counted_once():
    grid = enumerate_plans(dense()).grid
    alone = grid.pp == 1
    assert values(grid.take(alone), "schedule") == {Schedule.ONE_F_ONE_B}
    assert values(grid.take(alone), "vpp") == {1}
    assert values(grid.take(grid.tp == 1), "sp") == {0}
    assert values(grid.take(grid.cp == 1), "cp_comm") == {0}
    assert values(grid, "ep") == {1} and values(grid, "etp") == {1}
