"""``meshplan estimate``: judge one plan."""

from __future__ import annotations

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver, distinct_files, in_time, save_scenario
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
    scenario_file: o.SaveScenario = None,
) -> int:
    """Judge one plan; 1 when it does not fit or misses a deadline."""
    session = ctx.find_object(Session)
    assert session
    distinct_files(delivery.output, scenario_file)
    request = build_request(model, job, profile=profile, settings=settings, frameworks=framework)
    request["plan"] = given_plan(request, degrees)
    from meshplan.app import service
    from meshplan.app.cli.render.answer import render_estimate

    with busy("cli.busy.estimate", session.lang):
        result = service.estimate(request)
    save_scenario(result, scenario_file, lang=session.lang)
    deliver(result, render_estimate, lang=session.lang, delivery=delivery)
    (entry,) = result["plans"]
    return 0 if entry["memory"]["verdict"] != "oom" and in_time(entry) else 1
