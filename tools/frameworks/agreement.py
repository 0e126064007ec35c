"""Compare our verdicts with those of the real validators and print the table.

``python tools/frameworks/agreement.py PYTHON [--write]``: ``PYTHON`` is the interpreter of the
frameworks' environment; ``--write`` keeps the figures for the documentation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests")]

from cases import Case, cases_of, example_cases

TARGETS = ("megatron", "bridge", "torchtitan", "deepspeed", "accelerate", "maxtext")
LEGAL, ILLEGAL = 110, 100
RECORD = HERE / "agreement.json"


@dataclass(kw_only=True)
class Agreement:
    """How the verdicts on one target compare.

    Attributes:
        target: the config format.
        legal: legal plans asked about.
        illegal: illegal plans asked about.
        refused: illegal plans that the validator refuses too.
        gaps: illegal plans that it accepts because every rule they break is a named gap.
        rules: rules with a plan of their own that was asked about.
        unwritten: rules whose example has no words in the target.
        wrong: what disagrees without a name.
    """

    target: str
    legal: int = 0
    illegal: int = 0
    refused: int = 0
    gaps: int = 0
    rules: dict[str, str] = field(default_factory=dict)
    unwritten: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def gaps_of(target: str) -> dict[str, range]:
    """Rules that the validator of a target does not check, and on how many GPUs."""
    gaps: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "gaps.yaml").read_text())
    both = {**gaps.get("all", {}), **gaps.get(target, {})}
    limits = {k: v if isinstance(v, dict) else {} for k, v in both.items()}
    return {k: range(v.get("above", 0) + 1, v.get("up_to", 10**6) + 1) for k, v in limits.items()}


def refused_anyway(target: str) -> set[str]:
    """Gaps whose example is refused for a reason that has nothing to do with the rule."""
    gaps: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "gaps.yaml").read_text())
    own = gaps.get(target, {}).items()
    return {k for k, v in own if isinstance(v, dict) and v.get("refused_anyway")}


def ask(python: str, target: str, cases: list[Case]) -> list[dict[str, Any]]:
    """Run the validator of a target over cases."""
    lines = [json.dumps({"id": i, **(case.payload or {})}) for i, case in enumerate(cases)]
    done = subprocess.run(
        [python, str(HERE / f"validate_{target}.py")],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE), "DS_ACCELERATOR": "cpu"},
        check=False,
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"id"')]
    if len(verdicts) != len(cases):
        raise RuntimeError(
            f"{target}: {len(verdicts)} of {len(cases)} answers\n{done.stderr[-3000:]}"
        )
    return verdicts


def compare(python: str, target: str) -> Agreement:
    """Ask about random plans and about one plan for each rule."""
    from rule_examples import EXAMPLES

    gaps, found = gaps_of(target), Agreement(target=target)
    examples = list(example_cases(target, EXAMPLES))
    found.unwritten = [rule for rule, case in examples if case.payload is None]
    named = [(rule, case) for rule, case in examples if case.payload is not None]
    cases = cases_of(target, legal=LEGAL, illegal=ILLEGAL)
    verdicts = ask(python, target, cases + [case for _, case in named])
    for case, verdict in zip(cases, verdicts, strict=False):
        _count(found, case, verdict, gaps)
    for (rule, case), verdict in zip(named, verdicts[len(cases) :], strict=True):
        found.rules[rule] = "accepted" if verdict["ok"] else "refused"
        _count(found, case, verdict, gaps)
        known = rule in refused_anyway(target)
        if not known and len(case.rules) == 1 and _gap(rule, case, gaps) and not verdict["ok"]:
            found.wrong.append(f"{rule} is no gap: {verdict['why']} ({case.name})")
    return found


def _gap(rule: str, case: Case, gaps: dict[str, range]) -> bool:
    """Whether the validator is known not to check a rule on a case of that size."""
    world = (case.payload or {}).get("world", 0)
    return rule in gaps and world in gaps[rule]


def _count(found: Agreement, case: Case, verdict: dict[str, Any], gaps: dict[str, range]) -> None:
    if not case.rules:
        found.legal += 1
        if not verdict["ok"]:
            found.wrong.append(f"legal, refused: {verdict['why']} ({case.name})")
        return
    found.illegal += 1
    if not verdict["ok"]:
        found.refused += 1
    elif all(_gap(rule, case, gaps) for rule in case.rules):
        found.gaps += 1
    else:
        unnamed = sorted(rule for rule in case.rules if not _gap(rule, case, gaps))
        found.wrong.append(f"illegal by {', '.join(unnamed)}, accepted ({case.name})")


def table(results: list[Agreement]) -> str:
    """The figures as a table."""
    head = "| target | legal | accepted | illegal | refused | named gap | rules | unexplained |"
    rows = [head, "| --- " * 8 + "|"]
    for r in results:
        accepted = r.legal - sum(w.startswith("legal,") for w in r.wrong)
        cells = (r.target, r.legal, accepted, r.illegal, r.refused, r.gaps, len(r.rules))
        rows.append(f"| {' | '.join(map(str, cells))} | {len(r.wrong)} |")
    return "\n".join(rows)


def main() -> int:
    """Compare all targets; 1 when something disagrees without a name."""
    python, targets = sys.argv[1], [a for a in sys.argv[2:] if not a.startswith("-")] or TARGETS
    results = [compare(python, target) for target in targets]
    print(table(results))
    for result in results:
        for line in result.wrong:
            print(f"{result.target}: {line}")
        print(f"{result.target}: rules seen", " ".join(f"{k}={v}" for k, v in result.rules.items()))
        print(f"{result.target}: rules without words", *result.unwritten)
    if "--write" in sys.argv:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        record |= {r.target: {k: v for k, v in vars(r).items() if k != "target"} for r in results}
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(any(result.wrong for result in results))


if __name__ == "__main__":
    sys.exit(main())
