"""Layers on pipeline stages: none lost, none twice, in order, and balanced."""

from hypothesis import given
from hypothesis import strategies as st

from meshplan.space.plan import Schedule, Split
from meshplan.space.stages import V_SHAPED, deal_layers, representative_stages, stage_layout
from space_scenarios import dense_model, mamba, mixer_model, model_of

PP, VPP = st.integers(1, 16), st.integers(1, 6)
LAYERS = st.integers(1, 128)
MTP = st.integers(0, 2)


@st.composite
def layouts(draw):
    """A layout that exists, with what it was asked for."""
    pp = draw(st.integers(1, 12))
    schedule = draw(st.sampled_from(Schedule))
    vpp = 2 if schedule in V_SHAPED else draw(st.integers(1, 4))
    split = draw(st.sampled_from(Split))
    mtp = draw(MTP)
    each = draw(st.integers(1 + mtp, 6))
    extra = draw(st.integers(0, pp * vpp - 1)) if split is Split.BALANCED else 0
    num_layers = each * pp * vpp + extra
    layout = stage_layout(
        num_layers=num_layers,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        split=split,
        num_mtp_layers=mtp,
    )
    assert layout is not None
    return layout, pp, vpp, schedule, num_layers


@given(layouts())
def test_layers_are_conserved_and_contiguous(case):
    layout, _, _, _, num_layers = case
    at = 0
    for _, chunk in layout.virtual_stages:
        assert chunk.first_layer == at
        at += chunk.num_layers
    assert at == num_layers


@given(layouts())
def test_each_virtual_stage_once_and_ends_marked(case):
    layout, pp, vpp, _, _ = case
    chunks = [chunk for _, chunk in layout.virtual_stages]
    assert [c.virtual_stage for c in chunks] == list(range(pp * vpp))
    assert [c.has_embedding for c in chunks] == [i == 0 for i in range(pp * vpp)]
    assert [c.has_head for c in chunks] == [i == pp * vpp - 1 for i in range(pp * vpp)]
    assert [len(row) for row in layout.chunks] == [vpp] * pp


@given(layouts())
def test_devices_loop_or_come_back(case):
    layout, pp, _, schedule, _ = case
    for device, chunk in layout.virtual_stages:
        lap, place = divmod(chunk.virtual_stage, pp)
        back = schedule in V_SHAPED and lap % 2 == 1
        assert device == (pp - 1 - place if back else place)
    if schedule in V_SHAPED:
        assert layout.chunks[0][0].has_embedding
        assert layout.chunks[0][-1].has_head


@given(num_layers=LAYERS, num_stages=st.integers(1, 64), mtp=MTP)
def test_balanced_units_differ_by_one(num_layers, num_stages, mtp):
    """Counting embedding, head and MTP blocks, no stage holds two units more than another."""
    dealt = deal_layers(
        num_layers=num_layers, num_stages=num_stages, split=Split.BALANCED, num_mtp_layers=mtp
    )
    if dealt is None:
        assert (num_layers + 2 + mtp) // num_stages < 1 + mtp
        return
    assert sum(dealt) == num_layers and min(dealt) >= 0
    units = list(dealt)
    units[0] += 1
    units[-1] += 1 + mtp
    if num_stages > 1:
        assert max(units) - min(units) <= 1


@given(num_layers=LAYERS, num_stages=st.integers(1, 64))
def test_even_is_even(num_layers, num_stages):
    dealt = deal_layers(num_layers=num_layers, num_stages=num_stages, split=Split.EVEN)
    assert (dealt is None) == (num_layers % num_stages != 0)
    assert dealt is None or (len(set(dealt)) == 1 and sum(dealt) == num_layers)


@given(layouts())
def test_representatives_cover_every_composition(case):
    layout, pp, _, schedule, num_layers = case
    kinds = dense_model(num_layers=1).layers + mixer_model(mamba(), num_layers=1).layers
    model = model_of(*[kinds[i % 3 == 0] for i in range(num_layers)])
    chosen = representative_stages(layout, model.layers)
    assert 0 in chosen

    def holds(stage: int) -> list[object]:
        return [
            (
                model.layers[c.first_layer : c.first_layer + c.num_layers],
                c.has_head,
            )
            for c in layout.chunks[stage]
        ]

    for stage in range(pp):
        like = [s for s in chosen if holds(s) == holds(stage)]
        assert like[0] <= stage
        if schedule in V_SHAPED:
            assert like[-1] >= stage and len(like) <= 2
        else:
            assert len(like) == 1
