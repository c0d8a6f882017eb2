"""Pinned pages against a model of lists and dictionaries, every invariant checked after every action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.structures.pinned_pages import PinnedLayout, PinnedPages

KEYS = 300
PERIOD = 60


class Model:
    """What is pinned, by the rule: a page that was read takes the frame of the least used one if it is used more."""

    def __init__(self, frames: int, counters: int) -> None:
        self.page: list[int | None] = [None] * frames
        self.uses = Counter[int]()
        self.counters = counters
        self.tuples = self.periods = 0
        self.order()

    def used(self, frame: int) -> int:
        page = self.page[frame]
        return -1 if page is None else self.uses[page % self.counters]

    def order(self) -> None:
        uses = [self.used(frame) for frame in range(len(self.page))]
        self.victims = [(uses[frame], frame) for frame in sorted(range(len(uses)), key=uses.__getitem__)]

    def consider(self, pages: list[int], met: list[int]) -> int:
        pinned = 0
        for page, count in zip(pages, met, strict=True):
            self.uses[page % self.counters] += count
            if not count or page in self.page:
                continue
            while self.victims and self.used(self.victims[0][1]) > self.victims[0][0]:
                self.victims.pop(0)
            if not self.victims:
                continue
            had, frame = self.victims[0]
            if had < 0 or self.uses[page % self.counters] > had + had // 4 + 1:
                self.victims.pop(0)
                self.page[frame] = page
                pinned += 1
        if not self.victims:
            self.order()
        return pinned

    def pass_time(self, tuples: int) -> None:
        self.tuples += tuples
        if self.tuples >= PERIOD:
            self.tuples, self.periods = 0, self.periods + 1
            if self.periods % 4 == 0:
                self.uses = Counter({counter: uses // 2 for counter, uses in self.uses.items()})
            self.order()

    def forget(self, pages: list[int]) -> None:
        self.page = [None if page in pages else page for page in self.page]
        self.order()

    @property
    def pages(self) -> list[int]:
        return sorted(page for page in self.page if page is not None)


@pytest.fixture(scope="module", params=["unique", "repeated", "varying"])
def relation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relation]:
    # of the repeated keys some have more rows than a page
    keys = (
        np.repeat(np.arange(KEYS), np.resize([1, 2, 40, 3], KEYS)) if request.param == "repeated" else np.arange(KEYS)
    )
    # lengths change from row to row, so that all pages have about as many rows
    values = [f"{i}" * (i % 5) for i in range(keys.size)] if request.param == "varying" else np.arange(keys.size)
    table = pa.table({"id": keys, "v": values})
    with Relation.build(table, tmp_path_factory.mktemp("r") / "r", key="id", page_size=512) as relation:
        yield relation


def contents(relation: Relation) -> dict[int, dict[int, list[object]]]:
    """Return, of each page, the keys that have all their rows in it, and the values of those."""
    frames = relation.frames(1)
    everywhere: dict[int, list[tuple[int, object]]] = {}
    for page in range(relation.page_count):
        relation.read(np.array([page]), frames)
        keys, _, starts = page_keys(frames, relation.layout.stride)
        values = relation.rows(frames.reshape(-1), starts)["v"].to_pylist()
        for key, value in zip(keys.tolist(), values, strict=True):
            everywhere.setdefault(key, []).append((page, value))
    found: dict[int, dict[int, list[object]]] = {page: {} for page in range(relation.page_count)}
    for key, rows in everywhere.items():
        if len({page for page, _ in rows}) == 1:
            found[rows[0][0]][key] = [value for _, value in rows]
    return found


def look_up(relation: Relation, pinned: PinnedPages, asked: np.ndarray, cap: int) -> list[list[object]]:
    """Return the values found for each of the keys asked for."""
    found: list[list[object]] = [[] for _ in asked]
    held, matches = pinned.look_up(asked, cap)
    for match in matches:
        assert match.keys.tolist() == asked[match.positions].tolist()
        for position, value in zip(
            match.positions, relation.rows(match.data, match.starts)["v"].to_pylist(), strict=True
        ):
            found[position].append(value)
    assert held.tolist() == [bool(values) for values in found]
    return found


@pytest.mark.parametrize("few_counters", [False, True])
@pytest.mark.parametrize("frames", [1, 4])
def test_pages_come_and_go_as_the_rule_says(relation: Relation, frames: int, few_counters: bool) -> None:
    rng = np.random.default_rng(frames)
    counters = 3 if few_counters else relation.page_count
    pinned, model, whole = (
        PinnedPages(relation, frames, counters=counters, period=PERIOD),
        Model(frames, counters),
        contents(relation),
    )
    assert pinned.nbytes - 4 * counters <= PinnedLayout.of(relation).bytes_for(frames)
    weight = 1.0 / np.arange(1, relation.page_count + 1)
    pinnings = 0
    for turn in range(150):
        if turn % 50 == 0:  # other pages are hot now
            hot = rng.permutation(relation.page_count)
        action = rng.choice(["consider", "look up", "pass time", "forget"], p=[0.45, 0.35, 0.15, 0.05])
        if action == "consider":
            pages = np.sort(rng.choice(hot, size=3, replace=False, p=weight / weight.sum()))
            met, read = rng.integers(0, 5, 3), relation.frames(3)
            relation.read(pages, read)
            count = pinned.consider(pages, read, met)
            assert count == model.consider(pages.tolist(), met.tolist())
            pinnings += count
        elif action == "look up":
            asked = rng.integers(-3, KEYS + 3, 20)
            held = {key: (page, values) for page in model.pages for key, values in whole[page].items()}
            answer = [held.get(key, (-1, []))[1] for key in asked.tolist()]
            assert look_up(relation, pinned, asked, cap=int(rng.choice([1, 7, 100]))) == answer
            model.uses.update(held[key][0] % counters for key in asked.tolist() if key in held)
        elif action == "pass time":
            pinned.pass_time(40)
            model.pass_time(40)
        else:
            gone = np.unique([*pinned.pages[:1], rng.integers(relation.page_count)])
            pinned.forget(gone)
            model.forget(gone.tolist())
        pinned.check()
        assert pinned.pages.tolist() == model.pages, f"turn {turn}: {action}"
        assert pinned.row_count == sum(len(whole[page]) for page in model.pages)
    assert pinned.pinned == pinnings > 3, "pages came and went"


def test_pages_that_are_loaded_stay_and_are_copied(relation: Relation, tmp_path: Path) -> None:
    pinned, whole = PinnedPages(relation, 3), contents(relation)
    for pages in ([0, 2, 4], [1, 2], [3, 1, 0, 4, 5]):
        pinned.load(np.array(pages))
        pinned.check()
        assert pinned.pages.tolist() == sorted(pages[:3])
        assert pinned.row_count == sum(len(whole[page]) for page in pages[:3])
        frames, read = pinned.frames_of(np.array([*pages[:3], 9])), relation.frames(len(pages[:3]))
        assert frames[-1] == -1
        copied = relation.frames(len(pages[:3]))
        pinned.copy(frames[:-1], copied)
        relation.read(np.array(pages[:3]), read)
        assert np.array_equal(copied, read)
    assert pinned.pinned == 8


def test_as_many_pages_as_fit(relation: Relation) -> None:
    for size in (0, 511, 600, 5_000, 40_000):
        frames = PinnedLayout.of(relation).fitting(size)
        assert frames == 0 or PinnedLayout.of(relation).bytes_for(frames) <= size
        assert PinnedLayout.of(relation).bytes_for(frames + 1) > size
