"""Orders of the pipeline schedules against the action tables of torch.distributed.pipelining."""

import json
from pathlib import Path

import pytest

from meshplan.cost.schedule.actions import Kind
from meshplan.cost.schedule.orders import device_programs
from meshplan.space.plan import Schedule

DATA = Path(__file__).parents[1] / "data" / "torch_pipelining_tables.json"
NAMES = {
    "GPipe": Schedule.GPIPE,
    "1F1B": Schedule.ONE_F_ONE_B,
    "Interleaved1F1B": Schedule.INTERLEAVED,
    "InterleavedZeroBubble": Schedule.INTERLEAVED_ZB,
    "ZBVZeroBubble": Schedule.ZBV,
    "DualPipeV": Schedule.DUALPIPE_V,
}
LETTERS = {"F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.BACKWARD_INPUT, "W": 3}
TABLES = json.loads(DATA.read_text())["tables"]


def read_device(line: str) -> list[tuple[int, int, int]]:
    actions = []
    for word in line.split():
        stage, micro_batch = word[1:].split(".")
        actions.append((int(LETTERS[word[0]]), int(stage), int(micro_batch)))
    return actions


@pytest.mark.parametrize(
    "table",
    TABLES,
    ids=lambda t: f"{t['schedule']}-pp{t['pp']}-m{t['num_micro_batches']}-v{t['vpp']}",
)
def test_order_equals_torch(table):
    programs = device_programs(
        schedule=NAMES[table["schedule"]],
        pp=table["pp"],
        vpp=table["vpp"],
        num_micro_batches=table["num_micro_batches"],
    )
    for program, line in zip(programs, table["devices"], strict=True):
        assert list(program) == read_device(line)


def test_zb_h1_is_interleaved_zero_bubble_with_one_chunk():
    one = device_programs(schedule=Schedule.INTERLEAVED_ZB, pp=4, vpp=1, num_micro_batches=9)
    assert one == device_programs(schedule=Schedule.ZB_H1, pp=4, vpp=1, num_micro_batches=9)
