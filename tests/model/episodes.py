"""Runs of the machine from seeds, each in a process of its own, and failures made small."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random

from forced_filters import forced_filters
from isolated import first_failure
from model.machine import OPERATIONS, Machine

__all__ = ["Failure", "Trace", "episode", "in_child", "play", "read", "smallest", "written"]

Trace = list[tuple[str, int]]

_NAMES, _WEIGHTS = list(OPERATIONS), list(OPERATIONS.values())


@dataclass(frozen=True)
class Failure:
    """What went wrong, and the operations that led to it."""

    trace: Trace
    message: str

    def __str__(self) -> str:
        return f"{self.message}\n{len(self.trace)} operations: {written(self.trace)}"


def episode(seed: int, steps: int) -> Trace:
    """Return the operations of one run; it begins with a relation, a version open, and joins on it."""
    rng = Random(seed)
    names = ["build", "open_handle", "open_join", "open_join", *rng.choices(_NAMES, _WEIGHTS, k=max(0, steps - 4))]
    return [(name, rng.randrange(1 << 31)) for name in names]


def written(trace: Trace) -> str:
    """Write a trace the way `read` reads it."""
    return ", ".join(f"{name} {seed}" for name, seed in trace)


def read(text: str) -> Trace:
    """Read what `written` wrote."""
    return [(name, int(seed)) for name, seed in (part.split() for part in text.split(",") if part.strip())]


def play(trace: Trace) -> None:
    """Run a trace in this process; an error has ``at``, the number of the operation that failed.

    In every other trace, relations have filters of absent keys, and joins use them.
    """
    machine, at = Machine(), 0
    first = trace[0][1] if trace else 0
    try:
        with forced_filters(first % 7) if first % 2 else nullcontext():
            for name, seed in trace:
                machine.run(name, seed)
                at += 1
            machine.finish()
    except Exception as error:
        error.add_note("\n".join(line[:400] for line in machine.log[-25:]))
        error.at = at  # type: ignore[attr-defined]
        raise
    finally:
        machine.close()


def in_child(traces: Sequence[Trace], seconds: float = 120.0) -> Failure | None:
    """Run traces one after the other in a child; return the first failure, a crash or a standstill included."""
    failed = first_failure([partial(play, trace) for trace in traces], seconds)
    if failed is None:
        return None
    trace = traces[failed.task]
    return Failure(trace if failed.at is None else trace[: failed.at + 1], failed.message)


def smallest(failure: Failure, seconds: float = 120.0, child_seconds: float = 40.0) -> Failure:
    """Leave operations out as long as what remains still fails."""
    best, began, size = failure, time.monotonic(), max(1, len(failure.trace) // 2)
    while size >= 1:
        at = 0
        while at < len(best.trace):
            if time.monotonic() - began > seconds:
                return best
            tried = best.trace[:at] + best.trace[at + size :]
            found = in_child([tried], child_seconds) if tried else None
            if found is not None:
                best = found
            else:
                at += size
        size //= 2
    return best
