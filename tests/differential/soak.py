"""Run cases of the differential fuzz for as many tuples as one likes; see `cases.py`.

``python tests/differential/soak.py --tuples 10000000 --seed 1``

After every few cases it joins random histories as of a time, and compares with DuckDB. These tuples are counted apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.rounds import Round, play, play_as_of, smallest
from warming import warm_up

CASES = 10
AS_OF_CASES, AS_OF_TUPLES = 4, 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuples", type=int, default=10_000_000, help="stream tuples in all, times joins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--findings", type=int, default=1, help="stop after so many failures")
    parser.add_argument("--algorithms", type=int, default=5, help="joins of a case")
    parser.add_argument("--one", type=int, help="run the case of this seed only, in this process")
    parser.add_argument("--as-of", type=int, help="run the join as of a time of this seed only")
    given = parser.parse_args()
    if given.as_of is not None:
        done = play_as_of(given.as_of, 1, AS_OF_TUPLES)
        print(done, done.failure)
        return 1 if done.failure else 0
    if given.one is not None:
        from differential import cases
        from differential.running import run

        case = cases.draw(given.one, given.algorithms)
        print(case)
        run(case)
        return 0
    warm_up()
    began, seed, findings, told = time.monotonic(), given.seed * 1_000_000, 0, 0.0
    total = as_of = Round()
    while total.tuples < given.tuples and time.monotonic() - began < given.seconds:
        done = play(seed, CASES, given.algorithms)
        total += done
        if done.failure:
            findings += 1
            print(f"case {done.failed}: {done.failure}\nmaking it small …", flush=True)
            print(f"{smallest(done.failed, given.algorithms)}\n", flush=True)
            if findings >= given.findings:
                break
        dated = play_as_of(seed, AS_OF_CASES, AS_OF_TUPLES)
        as_of += dated
        if dated.failure:
            findings += 1
            print(f"as of a time, --as-of {dated.failed}: {dated.failure}\n", flush=True)
            if findings >= given.findings:
                break
        seed = done.failed + 1 if done.failure else seed + CASES
        if time.monotonic() - told > 30:
            told = time.monotonic()
            rate = (total.tuples + as_of.tuples) / (told - began)
            print(f"{total}; as of a time {as_of}; {findings} findings, {rate:.0f} tuples/s", flush=True)
    print(f"{total}; as of a time {as_of}; in {time.monotonic() - began:.0f} s, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
