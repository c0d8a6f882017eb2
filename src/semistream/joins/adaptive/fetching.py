"""Threads that read pages: each lists some, reads them into its own frames, and searches them for rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.relation.relation import Relation
from semistream.structures.hot.hot_rows import HotRows
from semistream.structures.hot.row_search import WantedRows
from semistream.structures.read_plan import ReadPlan, ReadPlanner

__all__ = ["Fetching", "Frames"]


class Frames(NamedTuple):
    """Some frames, and a buffer for their page numbers."""

    listed: Ints
    frames: Bytes


class _Part:
    """Keys that are located together, and the progress of reading their pages."""

    def __init__(self, numbers: Slots, wanted: WantedRows, plan: ReadPlan) -> None:
        self.numbers = numbers
        self.wanted = wanted
        self.plan = plan
        self.at = 0
        """How far the plan has been listed."""
        self.coming = 0
        """Number of calls that were listed and whose pages have not been searched yet."""


class Reading(NamedTuple):
    """Pages that are read by one call."""

    part: _Part
    number: int
    pages: Ints


class Fetching:
    """Shared state of the threads of one call of `PageFetch.bring`; each lists, reads and searches its own frames.

    Reading needs no lock. Searching changes the arena, so only one thread searches at a time. If a key may have several
    rows, pages are searched in order, because the rows of a key must be in R's order. Only one thread at a time locates
    keys and plans their reads; another may search meanwhile.
    """

    def __init__(
        self, relation: Relation, planner: ReadPlanner, arena: HotRows, wanted: Iterator[tuple[Slots, WantedRows]]
    ) -> None:
        self._relation, self._planner, self._arena = relation, planner, arena
        self._parts = self._planned(wanted)
        self._open: list[_Part] = []
        self._listed = self._searched = 0
        self._fitted = True
        self._in_order = not arena.unique
        self._listing, self._counting = threading.Lock(), threading.Lock()
        self._turn = threading.Condition()
        """Guards the arena. A thread that lists may wait for it; a thread that holds it never waits for listing."""
        self._error: BaseException | None = None

    def _planned(self, wanted: Iterator[tuple[Slots, WantedRows]]) -> Iterator[_Part]:
        for numbers, found in wanted:
            if numbers.size == 0:  # a single key has more pages than can be requested
                self._fitted = False
                return
            yield _Part(numbers, found, self._planner.plan_for(found.pages))

    def following(self, own: Frames) -> Reading | None:
        """List the next pages to read; None if there are none."""
        with self._listing:
            while self._fitted and self._error is None:
                part = self._open[-1] if self._open else None
                if part is None or part.at == part.plan.pages.size:
                    # Settle parts whose pages have all been searched; their arrays are freed before the next part.
                    with self._turn:
                        self._settle()
                    if (part := next(self._parts, None)) is None:
                        return None
                    with self._turn:
                        self._open.append(part)
                    continue
                with self._counting:
                    part.coming += 1
                pages, part.at = part.plan.list_pages(part.at, own.listed)
                self._listed += 1
                return Reading(part, self._listed - 1, pages)
            return None

    def expect(self, rows: int) -> bool:
        """Announce the expected rows to the arena; return whether no error has occurred."""
        with self._turn:
            try:
                self._arena.expect(rows)
            except BaseException as error:
                self._fail(error)
        return self._error is None

    def run(self, own: Frames, reading: Reading | None) -> None:
        """Read and search until there is nothing left."""
        try:
            while reading is not None:
                frames = own.frames[: reading.pages.size]
                self._relation.read(reading.pages, frames)
                with self._turn:
                    while not self._may_search(reading.number):
                        self._turn.wait()
                    self._search(reading, frames)
                    self._turn.notify_all()
                reading = self.following(own)
        except BaseException as error:
            with self._turn:
                self._fail(error)

    def end(self) -> bool:
        """Return whether all rows are in the arena; keys whose rows may be incomplete become unknown again."""
        self._settle()
        for part in self._open:
            self._arena.reset(part.numbers)
        if self._error is not None:
            raise self._error
        return self._fitted

    def _may_search(self, number: int) -> bool:
        return not self._in_order or number == self._searched or not self._fitted or self._error is not None

    def _search(self, reading: Reading, frames: Bytes) -> None:
        if not self._fitted or self._error is not None:
            return
        part, pages = reading.part, reading.pages
        begin = int(np.searchsorted(part.wanted.pages, pages[0]))
        _, self._fitted = self._arena.bring(part.numbers, part.wanted, begin, pages, frames)
        self._searched += 1
        with self._counting:
            part.coming -= self._fitted

    def _settle(self) -> None:
        """Settle the keys of finished parts."""
        for part in [part for part in self._open if part.coming == 0 and part.at == part.plan.pages.size]:
            self._arena.settle(part.numbers)
            self._open.remove(part)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._turn.notify_all()
