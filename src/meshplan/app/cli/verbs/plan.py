"""``meshplan plan``: the best plans for a model on a cluster."""

from __future__ import annotations

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver, distinct_files, in_time, save_scenario
from meshplan.app.cli.request import build_request, pins_of

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    model: o.Model,
    *,
    job: o.Job,
    objective: o.Objective = None,
    profile: o.Profile = None,
    settings: o.Set = None,
    degrees: o.Degrees,
    framework: o.Framework = None,
    delivery: o.Delivery,
    scenario_file: o.SaveScenario = None,
) -> int:
    """Find the best plans; 1 when nothing fits or a deadline is missed."""
    session = ctx.find_object(Session)
    assert session
    distinct_files(delivery.output, scenario_file)
    request = build_request(
        model,
        job,
        objective=objective,
        profile=profile,
        settings=settings,
        frameworks=framework,
        axes=pins_of(degrees),
    )
    from meshplan.app import service
    from meshplan.app.cli.render.answer import render_plan

    with busy("cli.busy.plan", session.lang):
        result = service.plan(request)
    save_scenario(result, scenario_file, lang=session.lang)
    deliver(result, render_plan, lang=session.lang, delivery=delivery)
    return 0 if result["plans"] and in_time(result["plans"][0]) else 1
