"""``meshplan diagnose``: why a run is slow, and what to change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import deliver, distinct_files, write_file
from meshplan.text import t

if TYPE_CHECKING:
    from meshplan.diagnose.reading import Reading

__all__ = ["run"]

_RUN = "cli.panel.run"


def run(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="cli.argument.diagnose_paths")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="FILE", help="cli.option.diagnose_config", rich_help_panel=_RUN
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", metavar="FILE|FIELDS", help="cli.option.diagnose_plan", rich_help_panel=_RUN
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="cli.option.diagnose_model", rich_help_panel=_RUN
        ),
    ] = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    profile: o.Profile = None,
    settings: o.Set = None,
    framework: o.Framework = None,
    stage_times: Annotated[
        str | None,
        typer.Option(
            "--stage-times",
            metavar="S,S,...",
            help="cli.option.stage_times",
            rich_help_panel=_RUN,
        ),
    ] = None,
    utilization: Annotated[
        str | None,
        typer.Option(
            "--utilization", metavar="SHARE", help="cli.option.utilization", rich_help_panel=_RUN
        ),
    ] = None,
    allocation: Annotated[
        str | None,
        typer.Option("--allocation", metavar="SIZE", help="cli.option.allocation"),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option("--calibrate", metavar="FILE", help="cli.option.diagnose_calibrate"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="cli.option.strict")] = False,
    as_json: o.Json = False,
    output: o.Output = None,
) -> int:
    """Diagnose; 0 when the run could be looked at, with --strict 1 when something was found."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.diagnosis import render_diagnose
    from meshplan.app.cli.request import plan_fields
    from meshplan.inputs.load.settings import apply_settings

    distinct_files(calibrate, output)
    job = {"seq_len": seq_len, "global_batch": global_batch}
    request: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "profile": profile,
        "frameworks": framework and framework.split(","),
        "job": {key: value for key, value in job.items() if value is not None} or None,
        "config": config or None,
        "stage_times": stage_times,
        "utilization": utilization,
        "allocation": allocation,
        "calibrate": True if calibrate else None,
    }
    request = {key: value for key, value in request.items() if value is not None}
    if plan is not None and _is_fields(plan):
        request["plan"] = plan_fields(plan)
    elif plan is not None:
        request["plan_file"] = plan
    request = {**apply_settings(request, settings or ()), "paths": paths or []}
    with _progress(session.lang) as tell:
        result = service.diagnose(request, progress=tell)
    if calibrate and "calibration" in result:
        from meshplan.inputs.load.scenario import dump_scenario

        text = dump_scenario(result["calibration"]["profile"])
        write_file(calibrate, text, lang=session.lang)
    deliver(
        result,
        render_diagnose,
        lang=session.lang,
        delivery=o.Delivery(as_json=as_json, output=output),
    )
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
