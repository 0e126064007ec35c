"""``meshplan calibrate``: a cluster profile from a few measured runs."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver, write_file

__all__ = ["run"]


def run(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUNS", help="cli.argument.measured")],
    models: Annotated[
        str | None, typer.Option("--models", metavar="MODELS.csv", help="cli.option.models")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="ID", help="cli.option.source")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option("--row", metavar="ID", help="cli.option.row")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option("--scenario", metavar="FILE", help="cli.option.scenario")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="FILE", help="cli.option.profile_start")
    ] = None,
    keep_far: Annotated[bool, typer.Option("--keep-far", help="cli.option.keep_far")] = False,
    as_json: o.Json = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="cli.option.profile_output"),
    ] = None,
) -> int:
    """Calibrate; a profile file is written beside the table of errors."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.validation import render_calibrate

    request = {
        "runs": runs,
        "models": models,
        "sources": source or None,
        "rows": row or None,
        "scenario": scenario,
        "profile": profile,
        "keep_far": keep_far or None,
    }
    with busy("cli.busy.calibrate", session.lang):
        result = service.calibrate(request)
    if output and output.endswith((".yaml", ".yml")):
        from meshplan.inputs.load.profile_file import dump_profile

        write_file(output, dump_profile(result["profile"]), lang=session.lang)
        output = None
    delivery = o.Delivery(as_json=as_json, output=output)
    deliver(result, render_calibrate, lang=session.lang, delivery=delivery)
    return 0
