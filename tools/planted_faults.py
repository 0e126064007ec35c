"""Plant faults in played runs and count which are found, by kind.

python tools/planted_faults.py [--set held] [--count 360] [--seed 20261] [--show]
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from planted.judge import Verdict, judge, table
from planted.sample import BASES, cases


def main() -> int:
    """Judge runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", dest="which", choices=sorted(BASES), default="held")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20261)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="list runs that were judged wrong")
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
