"""``meshplan explain``: every formula of one plan with its numbers and source."""

from __future__ import annotations

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver
from meshplan.app.cli.request import build_request, given_plan

__all__ = ["run"]


def run(
    ctx: typer.Context,
    model: o.Model,
    cluster: o.Cluster = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
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
) -> int:
    """Explain one plan, the best one when no degree is given."""
    session = ctx.find_object(Session)
    assert session
    request = build_request(
        model,
        cluster=cluster,
        seq_len=seq_len,
        global_batch=global_batch,
        profile=profile,
        settings=settings,
        frameworks=framework,
    )
    request["plan"] = given_plan(
        request,
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
    )
    from meshplan.app import service
    from meshplan.app.cli.render.formulas import render_explain

    with busy("cli.busy.explain", session.lang):
        result = service.explain(request)
    deliver(result, render_explain, lang=session.lang, as_json=as_json, output=output)
    return 0
