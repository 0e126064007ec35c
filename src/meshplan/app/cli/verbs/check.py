"""``meshplan check``: what a config that someone already has will do."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver

__all__ = ["run"]


def run(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="cli.argument.check_files")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="cli.option.check_model",
            rich_help_panel="cli.panel.job",
        ),
    ] = None,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    profile: o.Profile = None,
    settings: o.Set = None,
    as_json: o.Json = False,
    output: o.Output = None,
) -> int:
    """Check; 1 when the config is illegal or does not fit."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.check import render_check
    from meshplan.inputs.load.scenario import apply_settings

    job = {"seq_len": seq_len, "global_batch": global_batch}
    request: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "profile": profile,
        "job": {key: value for key, value in job.items() if value is not None},
    }
    request = {key: value for key, value in request.items() if value is not None}
    request = {**apply_settings(request, settings or ()), "files": files}
    with busy("cli.busy.estimate", session.lang):
        result = service.check(request)
    deliver(result, render_check, lang=session.lang, as_json=as_json, output=output)
    fits = result["legal"] and result["plans"][0]["memory"]["verdict"] != "oom"
    return 0 if fits else 1
