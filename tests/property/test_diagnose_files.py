"""Whatever stands in an Nsight export or in a table of metrics: an answer, or one clear refusal."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshplan.app import service
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.metrics import read_metrics
from meshplan.diagnose.read.nsight import read_nsight
from meshplan.errors import UserError

COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName",
        "shortName",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "correlationId", "globalTid", "nameId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "copyKind",
    ),
    "NVTX_EVENTS": ("start", "end", "text", "textId", "globalTid", "eventType"),
    "TARGET_INFO_GPU": ("cuDevice", "name"),
}  # fmt: skip
NEEDED = {"CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "demangledName")}
TEXTS = st.sampled_from(
    ("ProfilerStep#1", "nccl:all_reduce", "step 3", "DataLoader", "", "\x00", "gemm", "\ud7ff")
)
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 5000),
    st.integers(0, 3),
    st.floats(),
    TEXTS,
    st.binary(max_size=4),
)


@st.composite
def exports(draw):
    """Tables with some of their columns and whatever values."""
    tables = {}
    for table, columns in COLUMNS.items():
        if table in NEEDED or draw(st.booleans()):
            optional = [c for c in columns if c not in NEEDED.get(table, ())]
            kept = [c for c in optional if draw(st.integers(0, 3))]
            chosen = [*NEEDED.get(table, ()), *kept] or list(columns)
            row = st.tuples(*(VALUES for _ in chosen))
            tables[table] = (chosen, draw(st.lists(row, max_size=8)))
    names = draw(st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=5))
    tables["StringIds"] = (["id", "value"], names)
    return tables


def write(path: Path, tables) -> Path:
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    for table, (columns, rows) in tables.items():
        quoted = ", ".join('"' + column + '"' for column in columns)
        database.execute(f"CREATE TABLE {table} ({quoted})")
        marks = ", ".join("?" for _ in columns)
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    database.commit()
    database.close()
    return path


@settings(deadline=None, max_examples=80)
@given(tables=exports())
def test_any_export_is_measured_or_refused(tmp_path_factory, tables):
    path = write(tmp_path_factory.mktemp("export") / "a.sqlite", tables)
    try:
        found = [measure_rank(trace) for trace in read_nsight(path)]
    except UserError as error:
        assert error.problems
        return
    for rank in found:
        for step in rank.steps:
            assert step.time.wall_us >= 0
            assert step.time.compute_us >= 0


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_export_is_measured_or_refused(tmp_path_factory, data):
    columns = list(COLUMNS["CUPTI_ACTIVITY_KIND_KERNEL"])
    rows = [(i * 100, i * 100 + 50, 0, 7, i, 1, 0, 0) for i in range(200)]
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": (columns, rows), "StringIds": (["id", "value"], [])}
    path = write(tmp_path_factory.mktemp("export") / "a.sqlite", tables)
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        text[data.draw(st.integers(16, len(text) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(text[: data.draw(st.integers(100, len(text)))]))
    try:
        for trace in read_nsight(path):
            measure_rank(trace)
    except UserError as error:
        assert error.problems


CELLS = st.one_of(
    st.sampled_from(
        ("index", "utilization.gpu [%]", "clocks.current.sm [MHz]", "timestamp", "97 %", "1e999")
    ),
    st.sampled_from(("gpu", "sm", "Idx", "0", "-1", "nan", "[N/A]", "0x20", "1755 MHz", "#")),
    st.floats().map(str),
    st.text(max_size=5),
)


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(st.lists(CELLS, max_size=6), max_size=12),
    mark=st.sampled_from((", ", ",", "\t", "  ", ";")),
    header=st.booleans(),
)
def test_any_table_is_measured_or_refused(tmp_path_factory, rows, mark, header):
    lines = ["index, utilization.gpu [%], clocks.current.sm [MHz]"] if header else []
    lines += [mark.join(row) for row in rows]
    path = tmp_path_factory.mktemp("table") / "smi.csv"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        found = read_metrics(path)
    except UserError as error:
        assert error.problems
        return
    for gpu in found.gpus:
        for figure in gpu.figures.values():
            assert figure.num > 0
            assert figure.low <= figure.median <= figure.high


@pytest.mark.parametrize("text", [b"", b"\x00" * 64, b"index\n", b"\xff\xfe\x00", b"," * 5000])
def test_a_file_of_nothing_is_refused(tmp_path, text):
    (tmp_path / "smi.csv").write_bytes(text)
    with pytest.raises(UserError):
        service.diagnose({"paths": [str(tmp_path / "smi.csv")]})
