"""``meshplan plan``: the best plans for a model on a cluster."""

from __future__ import annotations

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver, save_scenario
from meshplan.app.cli.request import build_request, pins_of

__all__ = ["run"]


def run(
    ctx: typer.Context,
    model: o.Model,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    objective: o.Objective = None,
    profile: o.Profile = None,
    settings: o.Set = None,
    tp: o.Tp = None,
    pp: o.Pp = None,
    vpp: o.Vpp = None,
    cp: o.Cp = None,
    ep: o.Ep = None,
    etp: o.Etp = None,
    micro_batch: o.MicroBatch = None,
    zero: o.Zero = None,
    recompute: o.Recompute = None,
    schedule: o.Schedule = None,
    framework: o.Framework = None,
    as_json: o.Json = False,
    output: o.Output = None,
    scenario_file: o.SaveScenario = None,
) -> int:
    """Find the best plans; 1 when nothing fits."""
    session = ctx.find_object(Session)
    assert session
    request = build_request(
        model,
        cluster=cluster,
        seq_len=seq_len,
        global_batch=global_batch,
        objective=objective,
        profile=profile,
        settings=settings,
        frameworks=framework,
        axes=pins_of(
            tp=tp,
            pp=pp,
            vpp=vpp,
            cp=cp,
            ep=ep,
            etp=etp,
            micro_batch=micro_batch,
            zero=zero,
            recompute=recompute,
            schedule=schedule,
        ),
    )
    from meshplan.app import service
    from meshplan.app.cli.render.answer import render_plan

    with busy("cli.busy.plan", session.lang):
        result = service.plan(request)
    save_scenario(result, scenario_file, lang=session.lang)
    deliver(result, render_plan, lang=session.lang, as_json=as_json, output=output)
    return 0 if result["plans"] else 1
