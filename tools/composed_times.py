"""Tell times that were measured from times that were put together from parts.

    python tools/composed_times.py RUNS.csv MODELS.csv

Runs that differ in their number of micro-batches alone lie on a line where their times are sums of
parts: a fixed part, and one for each micro-batch. Times of real runs scatter about it; times that a
simulator added up lie on it to the last digit. Printed is, by source, how many triples of such runs
there are and how many of them lie on a line to a millionth. Of the times that do (they are all
vTrain's single node), the parts are printed: seconds of one block and of the head with its loss for
one micro-batch, and the speed of the head's products that two sizes of micro-batch tell.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise

from meshplan.cost.surfaces import constant
from meshplan.validate.rows import Case
from run_tables import cases_of, tables_parser, timed

VOCAB = 50257
ON_A_LINE = 1e-6  # of the time; the tables print nine digits
STAGES = 2
TERA = 1e12


def by_micro_batches(cases: list[Case]) -> list[tuple[Case, dict[int, float]]]:
    """One of the runs that are alike in all but micro-batches, and step times by their number [s].

    Of repeats the first counts.
    """
    found: dict[tuple, tuple[Case, dict[int, float]]] = {}
    for case in cases:
        job = replace(case.scenario.job, global_batch=1)
        plan = replace(case.plan, num_micro_batches=1)
        key = (case.source_id, replace(case.scenario, job=job), plan)
        _, times = found.setdefault(key, (case, {}))
        times.setdefault(case.plan.num_micro_batches, case.measured_step_s())
    return list(found.values())


def num_on_a_line(cases: list[Case]) -> tuple[int, int]:
    """Triples of runs that differ in their number of micro-batches, and those on a line."""
    triples = exact = 0
    for _, times in by_micro_batches(cases):
        for low, middle, high in combinations(sorted(times), 3):
            slope = (times[high] - times[low]) / (high - low)
            expected = times[low] + slope * (middle - low)
            triples += 1
            exact += abs(times[middle] / expected - 1.0) < ON_A_LINE
    return triples, exact


def parts_of(cases: list[Case]) -> dict[tuple[int, int], tuple[float, float]]:
    """Seconds of a block and of the head for one micro-batch, by TP and micro-batch.

    With two stages the last one, of half the blocks and the head, sets the pace.
    """
    pace: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for case, times in by_micro_batches(cases):
        if case.plan.pp == STAGES and len(times) > 1:
            low, high = min(times), max(times)
            each = (times[high] - times[low]) / (high - low)
            pace[case.plan.tp, case.plan.micro_batch][case.scenario.model.num_layers] = each
    found = {}
    for key, each in sorted(pace.items()):
        few, many = min(each), max(each)
        if few < many:
            block = (each[many] - each[few]) / (many - few)
            found[key] = (block * STAGES, each[few] - block * few)
    return found


def main() -> None:
    """Print how many times lie on a line, and the parts of those that do."""
    cases = timed(cases_of(tables_parser(__doc__).parse_args()))
    for source in sorted({case.source_id for case in cases}):
        for composed in (False, True):
            own = [c for c in cases if c.source_id == source and c.composed is composed]
            triples, exact = num_on_a_line(own)
            if triples:
                name = f"{source}, composed" if composed else source
                print(f"{name}: {exact} of {triples} triples on a line")
    own = [case for case in cases if case.composed]
    parts = parts_of(own)
    for (tp, micro_batch), (block, head) in parts.items():
        print(f"TP {tp}, {micro_batch} sequences: block {block:.6f} s, head {head:.6f} s")
    if not parts:
        return
    scenario = own[0].scenario
    device, model = scenario.cluster.device, scenario.model
    seconds_per_byte = 1.0 / device.memory_bandwidth_bytes_per_s / constant("memory_efficiency")
    loss_bytes = constant("fused_loss_forward_bytes") + constant("fused_loss_backward_bytes")
    for tp in sorted({tp for tp, _ in parts}):
        sizes = sorted(micro_batch for of, micro_batch in parts if of == tp)
        columns = VOCAB // tp
        for few, many in pairwise(sizes):
            logits = (many - few) * scenario.job.seq_len * columns
            took = parts[tp, many][1] - parts[tp, few][1] - loss_bytes * logits * seconds_per_byte
            speed = 6.0 * logits * model.hidden / took
            share = speed / device.peak_flop_per_s["bf16"]
            print(
                f"TP {tp}, {few} to {many} sequences: products of {columns} columns "
                f"{speed / TERA:.0f} TFLOP/s, {share:.2f} of the peak"
            )


if __name__ == "__main__":
    main()
