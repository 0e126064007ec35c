"""The edge between the terminal and meshplan: language, errors, exit codes.

Exit codes: 0 = yes, 1 = the answer is no (does not fit, nothing fits), 2 = wrong use, 70 = a fault
in meshplan itself, 130 = interrupted, 141 = whoever read our output stopped reading.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import typer
from typer._click.exceptions import UsageError

from meshplan.app.cli.commands import Session, build_app, usage_error
from meshplan.app.cli.complaints import print_complaint, problems_json
from meshplan.app.cli.language import take_language
from meshplan.errors import Problem, UserError, os_reason
from meshplan.inputs.load.opening import telling_waits
from meshplan.text import t

__all__ = ["main", "run"]

_OBJECTS_PER_COLLECTION = 100_000
EXIT_WRONG_USE = 2
EXIT_FAULT = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    # what a run makes lives as long as it does: looking for cycles in it takes a tenth of the run
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    # NumPy's linear algebra starts a thread for each core when it is imported, and we have no use
    # for them: what is computed goes element by element
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in ``meshplan ... >&-``
            setattr(sys, name, io.StringIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that lacks a character shows a question mark, not a fault
            stream.reconfigure(errors="replace")
    code = run(sys.argv[1:])
    # the interpreter looks for cycles in all that there is before it leaves, and nobody needs that
    gc.freeze()
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run the command line on some arguments.

    Returns:
        The exit code.
    """
    lang, rest, problem = take_language(argv, os.environ)
    try:
        if problem:
            raise problem
        for word in argv:
            if not word.isascii() and any("\ud800" <= char <= "\udfff" for char in word):
                # bytes that are no UTF-8 stand for no characters, and no result could name them
                raise UserError.of("usage_not_utf8", value=word)
        with telling_waits(lambda pipe: print(t("cli.waiting", lang, where=pipe), file=sys.stderr)):
            code = _dispatch(rest, lang)
        sys.stdout.flush()
    except UserError as error:
        return _wrong_use(error, rest, lang)
    except BrokenPipeError:
        # the interpreter would complain once more when it flushes on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # what is left in the buffer would fail once more on exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _wrong_use(
            UserError.of("usage_cannot_write", value="-", os_reason=os_reason(error)), rest, lang
        )
    except (KeyboardInterrupt, typer.Abort):
        print(t("cli.interrupted", lang), file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("MESHPLAN_DEBUG"):
            raise
        detail = f"{type(error).__name__}: {error}"
        print_complaint(UserError.of("internal_fault", value=detail), lang)
        return EXIT_FAULT
    return code


def _dispatch(args: list[str], lang: str) -> int:
    app = build_app()
    session = Session(lang=lang)
    if os.environ.get("_MESHPLAN_COMPLETE"):
        app.main(args=args, prog_name="meshplan", obj=session)
    try:
        with app.make_context("meshplan", args, obj=session) as ctx:
            return int(app.invoke(ctx) or 0)
    except typer.Exit as leave:
        return leave.exit_code
    except UsageError as error:
        raise usage_error(error) from None


_OPTION_OF = {
    "cluster": ("--cluster 64xH100",),
    "job": ("--seq-len 8192", "--global-batch 1024"),
    "job.seq_len": ("--seq-len 8192",),
    "job.global_batch": ("--global-batch 1024",),
    "num_gpus": ("--gpus 64",),
    "models": ("--models MODELS.csv",),
    "scenario": ("--scenario scenario.yaml",),
}
"""Options that give what a request lacks, with values that may be pasted."""


_NAMES = {"num_params_b": "BILLIONS", "num_gpus": "--gpus", "gpu_memory_gb": "--gpu-memory"}
"""What a person typed, where the service names a key that no scenario file has."""


def _name_options(error: UserError) -> UserError:
    """Say which option is missing where the service names a key."""
    problems: list[Problem] = []
    for problem in error.problems:
        options = _OPTION_OF.get(problem.where) if problem.code == "missing_key" else None
        named = [
            Problem(
                code="usage_missing_option",
                where=option.split()[0],
                numbers={"example": option, "key": problem.where},
            )
            for option in options or ()
        ]
        problems += named or [replace(problem, where=_NAMES.get(problem.where, problem.where))]
    return UserError(*problems)


def _wrong_use(error: UserError, args: list[str], lang: str) -> int:
    error = _name_options(error)
    if "--json" in args:
        print(problems_json(error, lang))
    print_complaint(error, lang)
    return EXIT_WRONG_USE
