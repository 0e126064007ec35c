"""``meshplan explain``: every formula of one plan with its numbers and source."""

from __future__ import annotations

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver
from meshplan.app.cli.request import build_request, given_plan

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    model: o.Model,
    *,
    job: o.Job,
    profile: o.Profile = None,
    settings: o.Set = None,
    degrees: o.Degrees,
    framework: o.Framework = None,
    delivery: o.Delivery,
) -> int:
    """Explain one plan, the best one when no degree is given."""
    session = ctx.find_object(Session)
    assert session
    request = build_request(model, job, profile=profile, settings=settings, frameworks=framework)
    request["plan"] = given_plan(request, degrees)
    from meshplan.app import service
    from meshplan.app.cli.render.formulas import render_explain

    with busy("cli.busy.explain", session.lang):
        result = service.explain(request)
    deliver(result, render_explain, lang=session.lang, delivery=delivery)
    return 0
