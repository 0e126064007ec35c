"""Fit how often a node of a cluster holds up a pipeline, and for how long, on the fit side.

    python tools/fit_stalls.py RUNS.csv MODELS.csv CLUSTER [--write]

Runs of one kind of layout fall in two modes: some take what is predicted, others longer by a time
that grows with the micro-batches and with the share ``1 - 1/p`` of the stages that pass them on,
whatever else the plan is. The longer mode is the more frequent the more nodes a job has, as it is
where each node is at fault with the same probability ``q``: ``1 - (1 - q)^n``. The time is the
median of the runs of that mode, ``q`` is found by maximum likelihood. Nothing about a plan tells
which runs are held up: both numbers widen the band and leave the predicted step as it is.
"""

from __future__ import annotations

import re

import numpy as np

from fit_profiles import PRESETS, split_of
from meshplan.cost.handovers import num_handovers
from meshplan.space.plan import PlanGrid
from meshplan.validate.predict import Prediction, predict
from meshplan.validate.rows import Case
from run_tables import cases_of, tables_parser, timed

SHARES = np.linspace(0.001, 0.2, 200)


def passes_nodes(case: Case) -> bool:
    """Pipelines whose other traffic is understood: one reduction per step, tp inside a node."""
    plan = case.plan
    return plan.pp > 1 and plan.zero > 0 and plan.tp <= case.scenario.cluster.gpus_per_node


def excess_of(p: Prediction) -> float:
    """Time that a run takes beyond the prediction for each micro-batch that is passed on [s]."""
    (handovers,) = num_handovers(PlanGrid.of([p.case.plan])).tolist()
    return (p.case.measured_step_s() - p.step_time_s) / handovers


def two_modes(excess: np.ndarray) -> tuple[float, np.ndarray]:
    """Median of the longer mode, and which runs are of it."""
    longer = float(np.quantile(excess, 0.9))
    for _ in range(20):
        held_up = excess > longer / 2.0
        longer = float(np.median(excess[held_up]))
    return longer, held_up


def share_of(held_up: np.ndarray, nodes: np.ndarray) -> float:
    """Share of the nodes at fault that makes the runs most likely."""
    clean = np.log1p(-SHARES)[:, None] * nodes
    likelihood = np.where(held_up, np.log(-np.expm1(clean)), clean).sum(axis=1)
    return float(SHARES[np.argmax(likelihood)])


def main() -> None:
    """Fit one cluster, print how often each size is held up, and write."""
    parser = tables_parser(__doc__)
    parser.add_argument("cluster")
    args = parser.parse_args()
    cases = timed(cases_of(args))
    side = split_of(cases)
    own = [
        case
        for case in cases
        if case.scenario.cluster.profile == args.cluster
        and passes_nodes(case)
        and side.get(case.group) == "fit"
    ]

    found = predict(own, memory=False)
    seconds, held_up = two_modes(np.array([excess_of(p) for p in found]))
    nodes = np.array([p.case.scenario.cluster.num_nodes for p in found])
    share = share_of(held_up, nodes)
    for count in np.unique(nodes):
        seen = float(np.mean(held_up[nodes == count]))
        print(f"{count} nodes: {seen:.2f} held up, expected {1 - (1 - share) ** count:.2f}")
    line = f"stall_s: {seconds:.3g}, stall_share: {share:.3g}"
    print(line)
    if args.write:
        text = PRESETS.read_text("utf-8")
        head, sep, tail = text.partition("clusters:\n")
        pattern = rf"(\n  {re.escape(args.cluster)}:\n    fitted: \{{[^}}]*?)(?:, stall_s.*?)?\}}"
        tail, n = re.subn(pattern, rf"\g<1>, {line}}}", "\n" + tail, count=1)
        assert n == 1, args.cluster
        PRESETS.write_text(head + sep + tail[1:], "utf-8")


if __name__ == "__main__":
    main()
