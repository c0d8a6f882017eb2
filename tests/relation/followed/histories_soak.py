"""Random histories of Delta and Iceberg tables, each followed and compared at every version.

``python tests/relation/followed/histories_soak.py --histories 1000 --seed 1`` (``make histories``)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from followed_histories import HISTORIES, run_history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--kind", choices=list(HISTORIES), action="append")
    asked = parser.parse_args()
    kinds = asked.kind or list(HISTORIES)
    changes: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    began, done = time.monotonic(), 0
    for number in range(asked.histories):
        kind, seed = kinds[number % len(kinds)], asked.seed + number
        with tempfile.TemporaryDirectory() as folder:
            try:
                made, steps = run_history(Path(folder), kind, seed)
            except BaseException:
                print(f"failed: {kind}, seed {seed}", flush=True)
                raise
        changes.update(f"{kind} {name}" for name in made)
        versions.update(f"{kind} {step.operation}" for step in steps)
        done += 1
        if number % 50 == 49:
            print(f"{done} histories, {versions.total()} versions, {time.monotonic() - began:.0f} s", flush=True)
        if time.monotonic() - began > asked.seconds:
            break
    print(
        f"{done} histories from seed {asked.seed}, {time.monotonic() - began:.0f} s: every version equals its commit; "
        f"versions {dict(versions)}; changes {dict(changes)}"
    )


if __name__ == "__main__":
    main()
