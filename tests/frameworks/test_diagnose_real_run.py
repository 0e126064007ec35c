"""Real runs on four CPU ranks: healthy, with a slow rank, with slow collectives."""

import os
import subprocess
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from meshplan.app import service
from meshplan.diagnose.reading import read_run

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "frameworks" / "profiled_run.py"
SLOW = 2


@pytest.fixture(scope="module")
def profiled(python, tmp_path_factory):
    """Folders of traces by fault."""
    faults = {
        "healthy": (),
        "rank": ("--slow-rank", str(SLOW)),
        "collective": ("--slow-collective", "24"),
    }
    folders = {}
    for name, options in faults.items():
        folder = tmp_path_factory.mktemp(name)
        # standalone takes a free port: another process may run the same at the same time
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "4"]
        command += [str(SCRIPT), str(folder), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)
        folders[name] = folder
    return folders


def slow_steps(folder):
    """How often each rank is the one that the others wait for."""
    run = read_run([folder])
    assert [rank.rank for rank in run.ranks] == [0, 1, 2, 3]
    assert all(rank.on_host and len(rank.steps) == 6 for rank in run.ranks)
    return Counter(skew.slowest for skew in run.skew if skew.slowest is not None)


def findings(folder):
    result = service.diagnose({"paths": [str(folder)]})
    return {f["code"]: f for f in result["findings"]}


def exposed_share(folder):
    run = read_run([folder])
    shares = [s.time.exposed_us / s.time.wall_us for rank in run.ranks for s in rank.steady]
    return median(shares)


def test_axis_and_kind_of_a_run_without_metadata(profiled):
    run = read_run([profiled["healthy"]])
    for rank in run.ranks:
        assert {(t.axis, t.kind, t.group_size) for t in rank.steady[0].traffic} == {
            ("dp", "all_reduce", 4)
        }
        phases = {p.name for p in rank.steady[0].phases}
        assert {"forward", "backward", "optimizer"} <= phases


def test_the_clocks_of_one_machine_agree(profiled):
    run = read_run([profiled["healthy"]])
    step_us = median(rank.median_us("wall_us") for rank in run.ranks)
    for rank, offset in run.offset_us.items():
        assert abs(offset) < 0.1 * step_us, rank


def test_a_healthy_run_has_no_finding(profiled):
    assert max(slow_steps(profiled["healthy"]).values(), default=0) < 5
    assert findings(profiled["healthy"]) == {}


def test_a_slow_rank_is_found(profiled):
    assert slow_steps(profiled["rank"])[SLOW] >= 5
    found = findings(profiled["rank"])
    print(found["straggler"]["numbers"], found["straggler"]["cost_share"])
    assert next(iter(found)) == "straggler"
    assert found["straggler"]["numbers"]["rank"] == SLOW
    # its products take half as long again
    assert 1.35 < found["straggler"]["numbers"]["ratio"] < 1.65


def test_slow_collectives_are_found(profiled):
    healthy, slow = exposed_share(profiled["healthy"]), exposed_share(profiled["collective"])
    assert slow > 1.3 * healthy
    found = findings(profiled["collective"])
    assert next(iter(found)) == "gradients_exposed"
    assert found["gradients_exposed"]["cost_share"] > 0.2
    assert "straggler" not in found
