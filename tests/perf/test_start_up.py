"""Starting costs what is imported: counted, since times differ from machine to machine."""

from __future__ import annotations

import subprocess
import sys

# one micro-batch: the start-up is looked at, not the search
JOB = "--cluster 8xH100 --seq-len 4096 --global-batch 32 --micro-batch 1"
PLAN = ["plan", "llama-3.1-8b", *JOB.split()]
NEVER = ("pydantic", "importlib.metadata", "email", "asyncio", "starlette", "uvicorn", "numpy.ma")
"""Each costs about as much as a tenth of the start-up, and planning needs none."""


def modules_after(arguments):
    script = (
        "import sys\n"
        "from meshplan.app.cli.main import run\n"
        f"code = run({arguments!r})\n"
        "print('MODULES', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stdout.rsplit("MODULES", 1)[1].split())


def test_a_plan_imports_nothing_that_it_does_not_need():
    loaded = modules_after(PLAN)
    assert not [name for name in NEVER if name in loaded]
    assert len([name for name in loaded if name.startswith("meshplan.")]) < 240
    assert len(loaded) < 900


def test_help_imports_no_numbers():
    loaded = modules_after(["--help"])
    assert not [name for name in (*NEVER, "numpy", "yaml", "rich.console") if name in loaded]


def test_one_method_is_compiled_for_each_record():
    script = (
        "import builtins, sys\n"
        "run, compiled = builtins.exec, []\n"
        "def counted(source, *rest):\n"
        "    compiled.append(source) if isinstance(source, str) else None\n"
        "    return run(source, *rest)\n"
        "builtins.exec = counted\n"
        "import meshplan.app.service\n"
        "classes = {c for n, m in list(sys.modules.items()) if n.startswith('meshplan.')\n"
        "           for c in vars(m).values() if isinstance(c, type)}\n"
        "records = [c for c in classes if hasattr(c, '__dataclass_fields__')]\n"
        "print(len(records), len(compiled))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    num_records, num_compiled = map(int, done.stdout.split())
    assert num_records > 100
    # a plain dataclass takes six
    assert num_compiled < 1.2 * num_records
