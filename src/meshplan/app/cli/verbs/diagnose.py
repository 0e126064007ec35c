"""``meshplan diagnose``: why a run is slow, and what to change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import deliver, distinct_files, write_file
from meshplan.record import record
from meshplan.text import t

if TYPE_CHECKING:
    from meshplan.diagnose.reading import Reading

__all__ = ["run"]

_RUN = "cli.panel.run"


_Paths = Annotated[
    list[str] | None, typer.Argument(metavar="PATH", help="cli.argument.diagnose_paths")
]
_Calibrate = Annotated[
    str | None,
    typer.Option("--calibrate", metavar="FILE", help="cli.option.diagnose_calibrate"),
]
_Strict = Annotated[bool, typer.Option("--strict", help="cli.option.strict")]
_Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="FILE", help="cli.option.diagnose_config", rich_help_panel=_RUN
    ),
]
_Plan = Annotated[
    str | None,
    typer.Option(
        "--plan", metavar="FILE|FIELDS", help="cli.option.diagnose_plan", rich_help_panel=_RUN
    ),
]
_Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="cli.option.diagnose_model", rich_help_panel=_RUN),
]
_StageTimes = Annotated[
    str | None,
    typer.Option(
        "--stage-times", metavar="S,S,...", help="cli.option.stage_times", rich_help_panel=_RUN
    ),
]
_Utilization = Annotated[
    str | None,
    typer.Option(
        "--utilization", metavar="SHARE", help="cli.option.utilization", rich_help_panel=_RUN
    ),
]
_Allocation = Annotated[
    str | None, typer.Option("--allocation", metavar="SIZE", help="cli.option.allocation")
]


@record
class _Described:
    """What says how the run was set up."""

    config: _Config = None
    plan: _Plan = None
    model: _Model = None

    def given(self) -> dict[str, Any]:
        """Keys of a request; a plan is written out, or named as a file."""
        from meshplan.app.cli.request import plan_fields

        found: dict[str, Any] = {"model": self.model, "config": self.config or None}
        if self.plan is not None and _is_fields(self.plan):
            found["plan"] = plan_fields(self.plan)
        else:
            found["plan_file"] = self.plan
        return found


@record
class _Measured:
    """What was measured by hand."""

    stage_times: _StageTimes = None
    utilization: _Utilization = None
    allocation: _Allocation = None


@o.spread
def run(
    ctx: typer.Context,
    paths: _Paths = None,
    *,
    described: _Described,
    job: o.Job,
    profile: o.Profile = None,
    settings: o.Set = None,
    framework: o.Framework = None,
    measured: _Measured,
    calibrate: _Calibrate = None,
    strict: _Strict = False,
    delivery: o.Delivery,
) -> int:
    """Diagnose; 0 when the run could be looked at, with --strict 1 when something was found."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.diagnosis import render_diagnose
    from meshplan.inputs.load.settings import apply_settings

    distinct_files(calibrate, delivery.output)
    said = {"seq_len": job.seq_len, "global_batch": job.global_batch}
    request: dict[str, Any] = {
        **described.given(),
        **asdict(measured),
        "cluster": job.cluster,
        "profile": profile,
        "frameworks": framework and framework.split(","),
        "job": {key: value for key, value in said.items() if value is not None} or None,
        "calibrate": True if calibrate else None,
    }
    request = {key: value for key, value in request.items() if value is not None}
    request = {**apply_settings(request, settings or ()), "paths": paths or []}
    with _progress(session.lang) as tell:
        result = service.diagnose(request, progress=tell)
    if calibrate and "calibration" in result:
        from meshplan.inputs.load.profile_file import dump_profile

        text = dump_profile(result["calibration"]["profile"])
        write_file(calibrate, text, lang=session.lang)
    deliver(result, render_diagnose, lang=session.lang, delivery=delivery)
    return 1 if strict and result.get("findings") else 0


def _is_fields(text: str) -> bool:
    """Whether a plan is written as ``tp=8,pp=2`` rather than named as a file."""
    return "=" in text and not text.lower().endswith((".json", ".yaml", ".yml"))


@contextmanager
def _progress(lang: str) -> Iterator[Callable[[Reading], None] | None]:
    """Say on standard error which file is being read, where that is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:

        def tell(reading: Reading) -> None:
            status.update(
                t(
                    "diagnose.busy",
                    lang,
                    done=reading.number,
                    total=reading.num_files,
                    file=reading.file,
                    read_bytes=float(reading.num_bytes),
                )
            )

        yield tell
