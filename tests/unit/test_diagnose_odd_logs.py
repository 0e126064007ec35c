"""Logs as they lie about: restarted, of several ranks, cut off, in odd encodings."""

import gzip

import pytest

from meshplan.app import service
from meshplan.diagnose.read.log import read_log
from meshplan.diagnose.read.text import text_lines
from meshplan.diagnose.trace import read_trace
from meshplan.errors import UserError
from meshplan.units import format_duration


def step(number, ms):
    return (
        f" iteration {number:8d}/ 100 | consumed samples: {number * 256} | "
        f"elapsed time per iteration (ms): {ms:.1f} | global batch size: 256 | "
        f"lm loss: {10 - number * 0.01:.4E} |"
    )


def steps(first, last, ms, *, warm=None):
    """Lines of some steps, the first of which may take another time."""
    return [step(i, warm if warm and i == first else ms) for i in range(first, last + 1)]


PLAIN = steps(1, 40, 1000.0, warm=5000.0)


def read(tmp_path, lines, *, end="\n"):
    path = tmp_path / "train.log"
    path.write_bytes((end.join(lines) + end).encode())
    return read_log(path)


def codes(found):
    return [note.code for note in found.notes]


@pytest.mark.parametrize("first", [21, 1])
def test_a_run_that_began_again_counts_from_its_last_start(tmp_path, first):
    lines = [*steps(1, 30, 1000.0, warm=5000.0), *steps(first, 60, 2000.0, warm=9000.0)]
    found = read(tmp_path, lines)
    assert found.steady_step_s() == pytest.approx(2.0)
    assert [s.number for s in found.steady] == list(range(first + 1, 61))
    assert found.restarts == (first,)
    assert codes(found) == ["log_restarted"]


def test_a_run_that_began_again_twice(tmp_path):
    lines = [*steps(1, 30, 1000.0), *steps(21, 40, 2000.0), *steps(31, 60, 3000.0)]
    found = read(tmp_path, lines)
    assert found.restarts == (21, 31)
    assert found.steady_step_s() == pytest.approx(3.0)


def test_ranks_that_lag_are_no_restart(tmp_path):
    # the second rank prints a slower time for each step, one step behind the first
    lines = [step(1, 1000.0)]
    for number in range(2, 21):
        lines += [step(number, 1000.0), step(number - 1, 1200.0)]
    found = read(tmp_path, lines)
    assert found.restarts == ()
    assert found.steady_step_s() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "lines",
    [
        [f"\x1b[32m{line}\x1b[0m" for line in PLAIN],
        [
            line.replace("elapsed", "\x1b[1melapsed").replace("(ms):", "(ms):\x1b[33m")
            for line in PLAIN
        ],
        [f"[rank{rank}]:{line}" for line in PLAIN for rank in (3, 0, 1, 2)],
        [f"{rank}: {line}" for line in PLAIN for rank in (0, 1)],
        PLAIN + PLAIN,
    ],
    ids=["coloured", "coloured inside", "torchrun", "srun", "twice"],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_launchers_put_around_lines(tmp_path, lines, end):
    found = read(tmp_path, lines, end=end)
    assert len(found.steps) == 40
    assert found.steady_step_s() == pytest.approx(1.0)
    assert found.notes == ()


def test_an_archive_that_is_cut_off_is_read_up_to_the_cut(tmp_path):
    lines = [step(i, 1000.0 + i * 7919 % 13) for i in range(1, 401)]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "train.log.gz"
    path.write_bytes(whole[: len(whole) // 2])
    found = read_log(path)
    assert 100 < len(found.steps) < 400
    assert codes(found) == ["log_cut_off"]
    (note,) = service.diagnose({"paths": [str(path)]})["run"]["notes"]
    assert note["code"] == "log_cut_off"


def test_an_archive_of_several_members_is_read_to_its_end(tmp_path):
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n") + b"\x00" * 512)
    cuts = []
    assert list(text_lines(path, code="log_unreadable", damaged=lambda: cuts.append(1))) == [
        "a",
        "b",
    ]
    assert cuts == []


def test_an_archive_without_anything_whole_says_so(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"{}" * 100)[:10])
    with pytest.raises(UserError) as raised:
        service.diagnose({"paths": [str(path)]})
    assert [problem.code for problem in raised.value.problems] == ["trace.nothing_whole"]


def test_a_mark_of_encoding_does_not_hide_the_header(tmp_path):
    text = (
        '{"deviceProperties": [{"name": "GPU"}], "traceEvents": '
        '[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2}]}'
    )
    path = tmp_path / "rank0.json"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_trace(path).device == "GPU"


def test_a_progress_bar_alone_is_named_as_what_it_lacks(tmp_path):
    path = tmp_path / "bar.log"
    path.write_text("".join(f"\r{i:3d}%|###| {i}/100 [00:10<00:10, 1.01s/it]" for i in range(101)))
    with pytest.raises(UserError) as raised:
        service.diagnose({"paths": [str(path)]})
    assert [problem.code for problem in raised.value.problems] == ["log_unknown"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9996, "1 s"), (0.9994, "999 ms"), (0.00099961, "1 ms"), (1.0, "1 s")]
)
def test_durations_round_up_to_the_next_unit(seconds, text):
    assert format_duration(seconds) == text
