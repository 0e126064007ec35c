"""Laws of the log reader: whatever a log holds, it is read or refused in words."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.diagnose.read.log import read_log
from meshplan.errors import UserError

FRAGMENTS = (
    "iteration 1/ 2 | elapsed time per iteration (ms): ", "1e999", "..", "9" * 400, "0", "-1",
    ':::MLLOG {"key": "tracked_stats", "value": {"train_step_time": "x"}, "metadata": {}}',
    ':::MLLOG {"key": "train_loss", "time_ms": 1, "metadata": {"samples_count": "x"}}',
    "step: ", " tps: ", " loss: ", "memory: 1.0GiB(0%)", "mfu: 0%", "time (ms) | forward: ", "|",
    ":::MLLOG {",
    '"key": "tracked_stats", "value": {"train_step_time": "x"}', "}", "\x1b[31m", "\r",
    "Tried to allocate ", "12 GiB", "5 MiB already allocated", "global_step: 0 | ", "[batch=1/2]:",
    "train_step_timing in s: ", "{'train_runtime': ", "completed step: 1, seconds: ", "\u202e",
)  # fmt: skip


def answers(path: Path) -> None:
    try:
        log = read_log(path)
    except UserError as error:
        assert error.problems[0].code in ("log_unknown", "log_unreadable")
        return
    for name in ("steady_step_s", "steady_tokens_per_s", "clock_step_s", "implied_peak_flop_per_s"):
        value = getattr(log, name)()
        assert value is None or value >= 0


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8), max_size=6))
def test_any_text(tmp_path: Path, lines: list[list[str]]) -> None:
    path = tmp_path / "any.log"
    path.write_text("\n".join("".join(line) for line in lines), encoding="utf-8")
    answers(path)


@pytest.mark.parametrize("seed", range(4))
def test_real_logs_with_damage(shared: Path, tmp_path: Path, seed: int) -> None:
    folder = shared / "data" / "logs"
    if not folder.is_dir():
        pytest.skip("the logs are absent")
    dice = random.Random(seed)
    for source in sorted(folder.rglob("*.log")):
        text = bytearray(source.read_bytes())
        for _ in range(30):
            at = dice.randrange(len(text))
            text[at : at + dice.randrange(4)] = dice.choice((b"", b"..", b"9" * 30, b"\x00", b"\n"))
        path = tmp_path / "damaged.log"
        path.write_bytes(bytes(text[: dice.randrange(1, len(text) + 1)]))
        answers(path)
