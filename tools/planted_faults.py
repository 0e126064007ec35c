"""Plant faults in played runs and count which are found, by kind.

python tools/planted_faults.py [--set held] [--count 350] [--seed 7331] [--show] [--write]

``--write`` puts the counts into docs/*/diagnose.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from meshplan.text import t
from planted.judge import Verdict, judge, table, tally
from planted.sample import BASES, cases

DOCS = Path(__file__).parents[1] / "docs"
PLACE = re.compile(
    r"(?P<head><!-- planted faults -->\n).*?(?P<tail><!-- end of planted faults -->)", re.S
)
HEADS = {
    "en": "| cause | planted | precision | recall | costs judged | within 20 % | median error |",
    "zh": "| 原因 | 植入数 | 精确率 | 召回率 | 评判代价数 | 误差在 20% 以内 | 误差中位数 |",
}
SUMS = {
    "en": "`{command}`: of {drawn} drawn runs {judged} are judged, the others hold a fault too "
    "small to plant; {clean} of {healthy} healthy runs have no finding.",
    "zh": "`{command}`：抽取 {drawn} 次运行，评判 {judged} 次，其余的故障太小、不值得植入；"
    "{healthy} 次健康的运行里有 {clean} 次没有任何发现。",
}


def _write(path: Path, lang: str, command: str, verdicts: Sequence[Verdict], *, drawn: int) -> None:
    """Put the counts into a page, between the marks of their place."""
    lines = [HEADS[lang], "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for code, score in tally(verdicts).items():
        planted = score.right + score.missed + score.undecided
        cells = [t(f"diagnose.check.{code}", lang), str(planted)]
        cells += [f"{score.precision:.3f}", f"{score.recall:.3f}"]
        errors = sorted(score.errors)
        middle = f"{errors[len(errors) // 2]:.1%}" if errors else ""
        cells += [str(len(errors)), f"{score.within:.3f}" if errors else "", middle]
        lines.append("| " + " | ".join(cells) + " |")
    healthy = [v for v in verdicts if not v.planted]
    counts = {"healthy": len(healthy), "clean": sum(not v.found for v in healthy)}
    lines += ["", SUMS[lang].format(command=command, drawn=drawn, judged=len(verdicts), **counts)]
    text = path.read_text(encoding="utf-8")
    assert PLACE.search(text), f"{path} has no place for the counts"
    block = "\n" + "\n".join(lines) + "\n\n"
    path.write_text(PLACE.sub(lambda m: m["head"] + block + m["tail"], text), encoding="utf-8")


def main() -> int:
    """Judge runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="which", choices=sorted(BASES), default="held")
    parser.add_argument("--count", type=int, default=350)
    parser.add_argument("--seed", type=int, default=7331)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="list runs that were judged wrong")
    parser.add_argument("--write", action="store_true", help="put the counts into the documents")
    given = parser.parse_args()
    drawn = list(cases(given.which, given.count, seed=given.seed))
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs) as pool:
            found = list(pool.map(judge, drawn, chunksize=4))
    else:
        found = [judge(case) for case in drawn]
    verdicts = [verdict for verdict in found if verdict is not None]
    print(table(verdicts))
    print(f"left out, a fault costs under 5 % of the step: {len(found) - len(verdicts)}")
    if given.write:
        command = f"python tools/planted_faults.py --count {given.count} --seed {given.seed}"
        for lang in HEADS:
            _write(DOCS / lang / "diagnose.md", lang, command, verdicts, drawn=given.count)
    if given.show:
        for verdict in verdicts:
            _show(verdict)
    return 0


def _show(verdict: Verdict) -> None:
    wrong = verdict.planted.keys() ^ verdict.found.keys()
    off = [
        code
        for code, cost in verdict.planted.items()
        if code in verdict.found
        and verdict.cost_is_own(code)
        and abs(verdict.found[code] / cost - 1.0) > 0.2
    ]
    if not (wrong or off or verdict.wrong_ranks):
        return
    case = verdict.case
    planted = {code: round(float(cost), 3) for code, cost in verdict.planted.items()}
    found = {code: round(float(cost), 3) for code, cost in verdict.found.items()}
    print(
        f"{case.base.name} seed {case.seed} given {case.given} dropped {case.dropped or '-'}: "
        f"planted {planted} found {found} ranks {verdict.wrong_ranks}"
    )


if __name__ == "__main__":
    sys.exit(main())
