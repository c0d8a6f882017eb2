"""Cases in child processes, and those that fail made small."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np

from differential import cases
from differential.running import Refused, run
from isolated import first_failure
from joins.as_of_random import one_case

__all__ = ["Round", "play", "play_as_of", "smallest"]

_SECONDS = 300.0


@dataclass(frozen=True)
class Round:
    """What some cases gave."""

    tuples: int = 0
    cases: int = 0
    refused: int = 0
    failed: int = 0
    """Seed of the case that failed, if there is a failure."""
    failure: str = ""

    def __add__(self, more: Round) -> Round:
        return Round(
            self.tuples + more.tuples, self.cases + more.cases, self.refused + more.refused, more.failed, more.failure
        )

    def __str__(self) -> str:
        return f"{self.tuples:,} tuples in {self.cases:,} cases ({self.refused:,} refused)"


def play(seed: int, count: int, algorithms: int, seconds: float = _SECONDS) -> Round:
    """Run the cases of ``count`` seeds in a child, up to the first that fails."""
    return _play(seed, [partial(_one, seed=one, algorithms=algorithms) for one in range(seed, seed + count)], seconds)


def play_as_of(seed: int, count: int, tuples: int, seconds: float = _SECONDS) -> Round:
    """Run as many random joins as of a time in a child, up to the first that fails."""
    return _play(seed, [partial(_one_as_of, seed=one, tuples=tuples) for one in range(seed, seed + count)], seconds)


def _play(seed: int, tasks: Sequence[Callable[[np.ndarray], None]], seconds: float) -> Round:
    """Run tasks in a child; each counts tuples, cases, and cases that were refused."""
    memory = shared_memory.SharedMemory(create=True, size=24)
    try:
        numbers = np.ndarray(3, np.int64, memory.buf)
        numbers[:] = 0
        counting = [partial(task, numbers) for task in tasks]
        failed = first_failure(counting, seconds)
        tuples, ended, refused = numbers.tolist()
        del numbers, counting
    finally:
        memory.close()
        memory.unlink()
    if failed is None:
        return Round(tuples, ended, refused)
    return Round(tuples, ended, refused, seed + failed.task, failed.message)


def _one_as_of(numbers: np.ndarray, seed: int, tuples: int) -> None:
    root = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="semistream-fuzz-", dir=root if root.is_dir() else None) as folder:
        numbers[0] += one_case(seed, Path(folder) / "r", tuples)
    numbers[1] += 1


def _one(numbers: np.ndarray, seed: int, algorithms: int) -> None:
    case = cases.draw(seed, algorithms)
    try:
        run(case)
        numbers[0] += case.tuples
    except Refused:
        numbers[2] += 1
    numbers[1] += 1


def smallest(seed: int, algorithms: int, seconds: float = 120.0) -> str:
    """Leave parts of a case out as long as what remains still fails; say what remains."""
    case, began, message = cases.draw(seed, algorithms), time.monotonic(), "(does not fail again)"
    if (first := first_failure([partial(_quietly, case)], _SECONDS)) is not None:
        message = first.message
    tried = True
    while tried and time.monotonic() - began < seconds:
        tried = False
        for smaller in cases.smaller(case):
            failed = first_failure([partial(_quietly, smaller)], _SECONDS)
            if failed is not None:
                case, message, tried = smaller, failed.message, True
                break
            if time.monotonic() - began > seconds:
                break
    return f"{message}\n{case}"


def _quietly(case: cases.Case) -> None:
    with contextlib.suppress(Refused):
        run(case)
