"""Layouts that real runs use."""

from dataclasses import replace

import pytest

from meshplan.cost.schedule.layout import layout_of
from meshplan.space.plan import Schedule, Split
from meshplan.space.stages import deal_layers, dealing_costs, stage_layout
from space_scenarios import dense_model


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "mtp", "dealt"),
    [
        # Megatron-LM: --account-for-embedding-in-pipeline-split and -loss-, 126 + 2 units
        (126, 16, 0, (7,) + (8,) * 14 + (7,)),
        # DeepSeek-V3 on pp 8 * vpp 4: the layout string Et|(tt|)*30mL
        (61, 32, 1, (1,) + (2,) * 30 + (0,)),
        # Kimi K2 on pp 16 * vpp 2: Et|(tt|)*30L
        (61, 32, 0, (1,) + (2,) * 30 + (0,)),
        # GLM-4.5-Air on pp 4
        (46, 4, 0, (11, 12, 12, 11)),
        (5, 1, 0, (5,)),
        (3, 2, 0, (2, 1)),
    ],
)
def test_balanced_split(num_layers, num_stages, mtp, dealt):
    found = deal_layers(
        num_layers=num_layers, num_stages=num_stages, split=Split.BALANCED, num_mtp_layers=mtp
    )
    assert found == dealt


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "costs", "dealt"),
    [
        # shares of 12 / 3: the first stage exceeds 4 with its fifth block, the second 8 with 4 more
        (8, 3, (1, 4), (5, 3, 0)),
        (8, 2, (1, 0), (5, 3)),
        (8, 1, (1, 4), (8,)),
        (8, 8, (1, 100), (8, 0, 0, 0, 0, 0, 0, 0)),
        (4, 5, (1, 1), None),
    ],
)
def test_nanotron_deals_by_cost(num_layers, num_stages, costs, dealt):
    """nanotron, models/base.py: the next stage begins once the blocks so far exceed its share."""
    found = deal_layers(
        num_layers=num_layers, num_stages=num_stages, split=Split.BY_COST, costs=costs
    )
    assert found == dealt


def test_blocks_and_head_weigh_their_products():
    """nanotron, models/llama.py: 4 h^2 + 3 h f for a block, h V for the head."""
    model = dense_model(num_layers=8)
    ffn = model.layers[0].ffn.ffn_hidden
    h = model.hidden
    assert dealing_costs(model) == (4 * h * h + 3 * h * ffn, h * model.vocab)


@pytest.mark.parametrize(("num_layers", "num_stages", "mtp"), [(2, 6, 0), (8, 10, 1)])
def test_too_many_stages(num_layers, num_stages, mtp):
    assert (
        deal_layers(
            num_layers=num_layers, num_stages=num_stages, split=Split.BALANCED, num_mtp_layers=mtp
        )
        is None
    )


def test_explicit_layout_must_fit():
    def layout(*layers: int) -> object:
        return stage_layout(
            num_layers=46,
            pp=4,
            vpp=1,
            schedule=Schedule.ONE_F_ONE_B,
            split=Split.EVEN,
            stage_layers=layers,
        )

    assert layout(11, 12, 12, 11) is not None
    assert layout(11, 12, 12, 12) is None
    assert layout(23, 23) is None


def test_a_split_by_cost_weighs_the_head_of_the_model():
    # a head as wide as many blocks leaves the last stages of a nanotron run with fewer of them
    model = replace(dense_model(num_layers=8), vocab=1_000_000)
    shape = {"pp": 4, "vpp": 1, "schedule": Schedule.ONE_F_ONE_B, "split": Split.BY_COST}
    layout = layout_of(model, **shape, stage_layers=())
    costs = dealing_costs(model)
    dealt = deal_layers(num_layers=8, num_stages=4, split=Split.BY_COST, costs=costs)
    assert tuple(chunk.num_layers for _, chunk in layout.virtual_stages) == dealt
    assert dealt != deal_layers(num_layers=8, num_stages=4, split=Split.BY_COST)
