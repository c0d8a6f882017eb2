"""Run the machine for as many operations as one likes; see `machine.py`.

``python tests/model/soak.py --steps 1000000 --seed 1``
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from model import episodes
from warming import warm_up

EPISODE = 250
BATCH = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="operations in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--findings", type=int, default=1, help="stop after so many failures")
    parser.add_argument("--replay", help="run this list of operations instead")
    given = parser.parse_args()
    if given.replay:
        episodes.play(episodes.read(given.replay))
        return 0
    warm_up()
    began, steps, seed, findings = time.monotonic(), 0, given.seed * 1_000_000, 0
    told = began
    while steps < given.steps and time.monotonic() - began < given.seconds:
        traces = [episodes.episode(seed + at, EPISODE) for at in range(BATCH)]
        failure = episodes.in_child(traces)
        steps += EPISODE * BATCH
        if failure is not None:
            findings += 1
            print(f"seed {seed}: {failure.message}\nmaking it small …", flush=True)
            print(f"{episodes.smallest(failure)}\n", flush=True)
            if findings >= given.findings:
                break
        seed += BATCH
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{steps:,} steps, {findings} findings, {steps / (told - began):.0f} steps/s", flush=True)
    print(f"{steps:,} steps in {time.monotonic() - began:.0f} s, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
