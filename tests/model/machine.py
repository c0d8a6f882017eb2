"""The stateful model test: relation, versions and joins together, against plain dictionaries.

A `Machine` is a directory with one relation, some of its versions open, some joins on these, and beside each the
dictionary that it must equal. Its operations are methods that take a seeded random source and nothing else: what they
do follows from the seed and from the state, and an operation that cannot be done now does nothing. So any list of
``(name, seed)`` is a run that can be repeated, and any part of such a list too, which is how failures are made small.
After every operation everything that it touched and that has a ``check()`` is checked; tuples are judged when nothing
is pending.

Two drivers:

* `test_model.py` runs some thousands of operations with each test run, by Hypothesis and from seeds;
* ``python tests/model/soak.py --steps 1000000 --seed 1`` (``make soak``) runs as many as one likes, each episode in a
  process of its own, so that a crash or an endless loop is a finding too; it prints the smallest list that still fails.

``python tests/model/soak.py --replay 'build 17, open_join 4, …'`` runs such a list again.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from model.data import Contents, Shape, draw_shape, least_page
from model.history_operations import HistoryOperations
from model.join_operations import JoinOperations
from model.relation_operations import RelationOperations
from model.watched import Handle
from semistream.relation.changes.invariants import check_relation

__all__ = ["OPERATIONS", "Machine"]

_LARGE = 60_000
_PATIENCE, _LONG_PATIENCE = 20.0, 1800.0
"""Seconds of the processor, and of the clock, after which an operation of milliseconds is held to be without end."""


class Machine(HistoryOperations, RelationOperations, JoinOperations):
    """A relation, its versions, and joins on them; see the module's description."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        **RelationOperations.WEIGHTS, **JoinOperations.WEIGHTS, **HistoryOperations.WEIGHTS,
    }  # fmt: skip

    def __init__(self, root: Path | None = None) -> None:
        if root is None and os.access("/dev/shm", os.W_OK):
            root = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="semistream-model-", dir=root))
        self.path = self.folder / "r"
        self.shape: Shape = draw_shape(Random(0))
        self.least_page = least_page(self.shape)
        self.universe = 0
        self.unique = True
        self.serial = 0
        self.position = 0
        self.versions: dict[int, Contents] = {}
        self.shards_of: dict[int, int] = {}
        self.clustered_of: dict[int, bool] = {}
        self.handles: list[Handle] = []
        self.warm: dict[Any, Any] = {}
        self.touched: list[Handle] = []
        """What the operation that runs has to do with."""
        self.log: list[str] = []
        """What operations did, for people."""

    def say(self, *what: object) -> None:
        """Note what the operation that runs does."""
        self.log[-1] += " " + " ".join(map(str, what))

    def run(self, name: str, seed: int) -> None:
        """Do one operation and check everything."""
        with _in_time(name):
            self.log.append(f"{name}:")
            self.touched.clear()
            try:
                getattr(self, name)(Random(seed))
            finally:
                for handle in self.handles:
                    for join in handle.joins:
                        join.follow_updates()
            for handle in self.touched:
                check_relation(handle.relation)
                for join in handle.joins:
                    # what large tables say of themselves takes longer to read than all else together
                    if join.join.budget.total < _LARGE or seed % 16 == 0:
                        join.check()

    def finish(self) -> None:
        """Drain all joins, compare all relations."""
        with _in_time("the end"):
            for handle in self.handles:
                for join in handle.joins:
                    join.drain()
                handle.check()

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        self.handles.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


OPERATIONS: dict[str, int] = Machine.WEIGHTS
"""Name of each operation → how often it is chosen."""


@contextmanager
def _in_time(what: str) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"{what} does not end")

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, _PATIENCE), (signal.ITIMER_REAL, signal.SIGALRM, _LONG_PATIENCE))
    before: list[Callable[..., Any] | int | None] = [signal.signal(number, late) for _, number, _ in timers]
    for timer, _, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
