"""Indexes: `locate` names exactly the pages that hold a key, or at most one that could."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.relation.pages.page_index import ClusteredIndex, ScatteredIndex
from semistream.relation.pages.page_layout import page_keys, page_rows
from semistream.relation.relation import Relation

Ints = np.ndarray
LIMITS = np.iinfo(np.int64)


def pages_of_keys(relation: Relation) -> tuple[dict[int, list[int]], dict[int, int], dict[int, int]]:
    """Return by reading everything: pages of each key, and the first and last key of each page."""
    frames = relation.frames(relation.page_count)
    relation.read(np.arange(relation.page_count), frames)
    keys, _, _ = page_keys(frames, relation.layout.stride)
    pages = np.repeat(np.arange(relation.page_count), page_rows(frames))
    of_key: dict[int, list[int]] = {}
    for key, page in sorted(set(zip(keys.tolist(), pages.tolist(), strict=True))):
        of_key.setdefault(key, []).append(page)
    first = {int(page): int(keys[pages == page].min()) for page in np.unique(pages)}
    last = {int(page): int(keys[pages == page].max()) for page in np.unique(pages)}
    return of_key, first, last


def build(tmp_path: Path, ids: Ints, **options: object) -> Relation:
    table = pa.table({"id": pa.array(ids, pa.int64()), "row": np.arange(len(ids))})
    return Relation.build(table, tmp_path / "r", key="id", page_size=512, **options)


def assert_located(relation: Relation, asked: Ints) -> None:
    of_key, first, last = pages_of_keys(relation)
    located = relation.locate(asked)
    assert located.bounds.tolist()[0] == 0
    assert located.bounds[-1] == located.pages.size
    for i, key in enumerate(asked.tolist()):
        pages = located.pages[located.bounds[i] : located.bounds[i + 1]].tolist()
        if key in of_key:
            assert pages == of_key[key], f"key {key}"
        elif relation.clustered:
            assert len(pages) <= 1, f"absent key {key} would cost reads of {pages}"
            if relation.row_count and len(relation.indexes) == 1:
                between = min(first.values()) <= key <= max(last.values())
                assert len(pages) == between, f"absent key {key} inside {between}: {pages}"
        else:
            assert pages == [], f"absent key {key} in {pages}: the leaves know it is absent"


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_keys_are_located(tmp_path: Path, clustered: bool, shards: int) -> None:
    rng = np.random.default_rng(1)
    ids = np.repeat(rng.integers(-500, 500, 200) * 2, np.resize([1, 2, 1, 90, 1, 4], 200))
    rng.shuffle(ids)
    relation = build(tmp_path, ids, clustered=clustered, shards=shards)
    asked = np.concatenate([np.arange(-1100, 1100), [LIMITS.min, LIMITS.max], np.arange(-1100, 1100)])
    rng.shuffle(asked)
    assert_located(relation, asked)
    assert_located(relation, asked[:0])
    assert_located(relation, asked[:1])


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize(
    "ids",
    [
        [],
        [0],
        [LIMITS.min],
        [LIMITS.max],
        [LIMITS.min] * 100 + [LIMITS.max] * 100,
        [5] * 300,
        list(range(31)) + [31] * 200 + list(range(32, 60)),
    ],
    ids=["none", "zero", "least", "most", "least and most", "one key", "a long key between"],
)
def test_borders(tmp_path: Path, clustered: bool, ids: list[int]) -> None:
    relation = build(tmp_path, np.array(ids, np.int64), clustered=clustered)
    asked = np.array([*{*ids}, -1, 0, 1, 4, 6, 30, 32, 59, 60, LIMITS.min, LIMITS.min + 1, LIMITS.max, LIMITS.max - 1])
    assert_located(relation, asked)


@settings(max_examples=40)
@given(
    ids=st.lists(st.integers(-30, 30), max_size=400),
    asked=st.lists(st.integers(-35, 35), max_size=50),
    clustered=st.booleans(),
    shards=st.integers(1, 3),
)
def test_any_keys(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], asked: list[int], clustered: bool, shards: int
) -> None:
    relation = build(tmp_path_factory.mktemp("index"), np.array(ids), clustered=clustered, shards=shards)
    assert_located(relation, np.array(asked, np.int64))
    relation.close()


def test_leaves_are_read_in_portions_and_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    relation = build(tmp_path, rng.permutation(20_000), clustered=False)
    (index,) = relation.indexes
    assert isinstance(index, ScatteredIndex)
    assert index.device.page_count > 100
    small = ScatteredIndex(index.fences, index.device, frames=3)
    asked = rng.integers(-10, 20_010, 3000)
    before = relation.counters.pages
    wide, narrow = index.locate(asked), small.locate(asked)
    assert np.array_equal(wide.bounds, narrow.bounds)
    assert np.array_equal(wide.pages, narrow.pages)
    leaves = np.unique(index.fences.locate(asked).pages).size
    assert relation.counters.pages - before == 2 * leaves, "each leaf is read once for all keys that need it"


def test_the_index_holds_what_it_says(tmp_path: Path) -> None:
    relation = build(tmp_path, np.arange(5000))
    (index,) = relation.indexes
    assert isinstance(index, ClusteredIndex)
    index.check()
    assert relation.index_bytes == index.first.nbytes + index.continues.nbytes == 9 * relation.page_count
    index.first[3] = 10**9
    with pytest.raises(AssertionError, match="not ascending"):
        index.check()


def test_intervals_of_keys(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ids = np.repeat(rng.integers(-200, 200, 150) * 3, np.resize([1, 1, 60, 2], 150))
    relation = build(tmp_path, ids)
    (index,) = relation.indexes
    assert isinstance(index, ClusteredIndex)
    of_key, _, _ = pages_of_keys(relation)
    low = rng.integers(-700, 700, 500)
    high = low + rng.integers(-20, 400, 500)
    begin, count = index.between(low, high)
    for i in range(low.size):
        pages = range(begin[i], begin[i] + count[i])
        wanted = {page for key, held in of_key.items() if low[i] <= key <= high[i] for page in held}
        assert wanted <= set(pages), f"[{low[i]}, {high[i]}]"
        if high[i] < low[i]:
            assert not pages
        # a page more at most, which would hold the keys if R had them
        assert len(pages) <= len(wanted) + 1


@pytest.mark.parametrize("clustered", [True, False])
def test_threads_may_locate_at_once(tmp_path: Path, clustered: bool) -> None:
    """The parallel joins do: leaves are read into frames that all share."""
    rng = np.random.default_rng(4)
    relation = build(tmp_path, rng.permutation(8000), clustered=clustered)
    asked = [rng.integers(-10, 8010, 300) for _ in range(40)]
    wanted = [relation.locate(keys) for keys in asked]
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(number, len(asked), 4):
            for _ in range(5):
                found = relation.locate(asked[turn])
                if not np.array_equal(found.pages, wanted[turn].pages):
                    wrong.append(turn)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_keys_may_be_further_apart_than_a_difference_can_say() -> None:
    first = np.array([-(2**63), -5, 2**63 - 1])
    ClusteredIndex(first, np.zeros(3, bool), 2**63 - 1).check()
    with pytest.raises(AssertionError, match="not ascending"):
        ClusteredIndex(first[[1, 0, 2]], np.zeros(3, bool), 2**63 - 1).check()
