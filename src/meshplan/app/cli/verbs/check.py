"""``meshplan check``: what a config that someone already has will do."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="cli.argument.check_files")],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="cli.option.check_model",
            rich_help_panel="cli.panel.job",
        ),
    ] = None,
    job: o.Job,
    profile: o.Profile = None,
    settings: o.Set = None,
    delivery: o.Delivery,
) -> int:
    """Check; 1 when the config is illegal or does not fit."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.check import render_check
    from meshplan.inputs.load.scenario import apply_settings

    said = {"seq_len": job.seq_len, "global_batch": job.global_batch}
    request: dict[str, Any] = {
        "model": model,
        "cluster": job.cluster,
        "profile": profile,
        "job": {key: value for key, value in said.items() if value is not None},
    }
    request = {key: value for key, value in request.items() if value is not None}
    request = {**apply_settings(request, settings or ()), "files": files}
    with busy("cli.busy.estimate", session.lang):
        result = service.check(request)
    deliver(result, render_check, lang=session.lang, delivery=delivery)
    fits = result["legal"] and result["plans"][0]["memory"]["verdict"] != "oom"
    return 0 if fits else 1
