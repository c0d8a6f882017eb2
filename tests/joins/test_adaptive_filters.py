"""ADAPTIVEJOIN and look-ups with filters of absent keys: when they are read, what they save, and changes of R."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from forced_filters import chosen_filters, filters_built, forced_filters
from semistream.core.arrays import Ints
from semistream.joins.adaptive.adaptivejoin import AdaptiveJoin
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.relation import Relation
from semistream.structures.absent_keys import AbsentKeys
from semistream.structures.array_source import MappedArrays

KEYS = 30_000
PROFILE = DeviceProfile(1e-4, 1e-5, 2e4, 1e9, 16, False)
"""Not measured, so that each run of a test divides the memory in the same way."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """R has the even keys."""
    place = tmp_path_factory.mktemp("filters") / "r"
    rows = pa.table({"id": np.arange(KEYS) * 2, **{f"c{at}": np.arange(KEYS) + at for at in range(8)}})
    with filters_built():
        Relation.build(rows, place, "id", page_size=512, encoding="plain").close()
    return place


@pytest.fixture
def relation(path: Path) -> Iterator[Relation]:
    with Relation.open(path) as relation:
        relation.device._profile = PROFILE
        yield relation


def opened(relation: Relation, memory: int = 600_000, **options: Any) -> AdaptiveJoin:
    join = semistream.create("adaptivejoin", relation, on="id", memory=memory, **options)
    assert isinstance(join, AdaptiveJoin)
    return join


def drawn(seed: int, absent: float, count: int = 3000) -> Ints:
    """Return keys of which a share is absent; half of the tuples have one of few keys."""
    rng = np.random.default_rng(seed)
    keys = np.where(rng.random(count) < 0.5, rng.integers(0, 300, count), rng.integers(0, KEYS, count)) * 2
    return keys + (rng.random(count) < absent)


def checked(join: AdaptiveJoin, keys: Ints) -> int:
    """Join keys, compare with what R has, and return the pages read."""
    before = join.stats.pages_read
    found = pa.Table.from_batches(join.process([pa.record_batch({"id": keys})]))
    there = (keys % 2 == 0) & (keys >= 0) & (keys < 2 * KEYS)
    assert found["id"].to_pylist() == keys.tolist()
    pairs = zip(keys.tolist(), there, strict=True)
    assert found["c1"].to_pylist() == [key // 2 + 1 if has else None for key, has in pairs]
    join.check()
    assert join.budget.peak <= join.budget.total
    return join.stats.pages_read - before


def filter_bytes(join: AdaptiveJoin) -> int:
    return join.budget.parts().get("key filter", 0)


def test_the_filter_is_read_when_it_saves_reads_and_released_when_it_does_not(relation: Relation) -> None:
    with chosen_filters():
        join = opened(relation)
        assert filter_bytes(join) == 0, "nothing is known of the stream yet"
        for batch in range(4):
            checked(join, drawn(batch, 0.0))
            assert filter_bytes(join) == 0, "every key is there"
        without = checked(join, drawn(10, 0.5))
        for batch in range(11, 17):
            pages = checked(join, drawn(batch, 0.5))
        held = filter_bytes(join)
        assert 0 < held < KEYS  # two bits a key, and a little
        assert pages < 0.8 * without
        for batch in range(20, 40):
            checked(join, drawn(batch, 0.0))
        assert filter_bytes(join) == 0
        assert sum(join.budget.parts().values()) >= 0.95 * join.budget.total, "rows have the memory again"


def test_hardly_a_page_is_read_for_absent_keys(relation: Relation) -> None:
    with forced_filters():
        join = opened(relation)
        keys = np.arange(1, 2 * KEYS, 2)
        assert checked(join, np.random.default_rng(1).permutation(keys)[:5000]) == 0
        present = join.stats.pages_read
        checked(join, drawn(1, 0.5))
        assert join.stats.pages_read > present


@pytest.mark.parametrize("planes", [0, 2, 6])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_keys_anywhere(tmp_path: Path, planes: int, how: str) -> None:
    """Keys that are far apart are hashed in the filter: absent ones are mistaken now and then, and are then read."""
    keys = np.unique(np.random.default_rng(4).integers(-(2**63), 2**63 - 1, 4000))
    with forced_filters(planes), Relation.build(pa.table({"id": keys, "n": keys}), tmp_path / "r", "id") as relation:
        asked = np.random.default_rng(5).permutation(np.concatenate([keys, keys + 1, keys - 1]))
        join = opened(relation, 300_000, how=how)
        found = pa.Table.from_batches(join.process([pa.record_batch({"id": asked})]))
        there = np.isin(asked, keys)
        pairs = zip(asked.tolist(), there, strict=True)
        expected = [key if has else None for key, has in pairs if has or how == "left"]
        assert found["n"].to_pylist() == expected


def test_updates_in_memory_and_on_disk(tmp_path: Path) -> None:
    """Keys that come are found at once, whatever the filter in memory says; deleted ones no longer."""
    rows = pa.table({"id": np.arange(2000) * 2, "n": np.arange(2000)})
    asked = np.arange(-3, 4005)
    with forced_filters(), Relation.build(rows, tmp_path / "r", "id", page_size=512, shards=2) as relation:
        have = {key: key // 2 for key in range(0, 4000, 2)}
        join, lookups = opened(relation, 400_000), relation.lookups("400KB")

        def compare() -> None:
            wanted = [have.get(key) for key in asked.tolist()]
            found = pa.Table.from_batches(join.process([pa.record_batch({"id": asked})]))
            assert found["n"].to_pylist() == wanted
            assert lookups.get(asked)["n"].to_pylist() == wanted
            join.check()
            lookups.check()

        compare()
        for step in range(6):
            new = {10 * at + 2 * step + 1: -step - at for at in range(step, 80)}
            gone = [100 + 2 * step, 31 + 10 * step]
            upserts = pa.table({"id": list(new), "n": list(new.values())})
            (relation.apply if step > 2 else relation.update)(upserts=upserts, deletes=pa.array(gone))
            have = {key: row for key, row in have.items() if key not in gone} | new
            compare()
        lookups.close()
    with forced_filters(), Relation.open(tmp_path / "r") as relation:
        version = relation.version
        table = relation.to_table()
        stored = dict(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
        assert relation.lookup(asked)["n"].to_pylist() == [stored.get(key) for key in asked.tolist()]
        relation.upsert(pa.table({"id": [3999], "n": [7]}))  # the look-ups follow with the filter that they have
        assert relation.lookup([3999, 3997])["n"].to_pylist() == [7, stored.get(3997)]
        relation.compact()
        assert relation.lookup([3999, 4001])["n"].to_pylist() == [7, None]
    with forced_filters(), Relation.open(tmp_path / "r", version=version) as relation:
        assert relation.lookup(asked)["n"].to_pylist() == [stored.get(key) for key in asked.tolist()]


def test_many_changes_release_the_filter(path: Path) -> None:
    with filters_built(), Relation.open(path) as relation:
        relation.device._profile = PROFILE
        with forced_filters():
            join = opened(relation, 2_000_000)
            checked(join, drawn(1, 0.5))
        absent = join._memory.absent
        assert absent.size is not None
        keys = np.arange(1, 3000, 2)
        changed = pa.table({"id": keys, **{f"c{at}": keys for at in range(8)}})
        relation.apply(changed)
        assert absent.size is None
        found = pa.Table.from_batches(join.process([pa.record_batch({"id": keys})]))
        assert found["c1"].to_pylist() == keys.tolist()
        assert absent.best(lambda more, saved: float(more), 1.0) == (None, False), "R has changes in memory"


def test_a_filter_that_cannot_be_read_is_tried_once(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(path, tmp_path / "r")
    (file,) = (tmp_path / "r").glob("*.filter")
    file.write_bytes(b"")
    with chosen_filters(), Relation.open(tmp_path / "r") as relation:
        relation.device._profile = PROFILE
        join = opened(relation)
        tried: list[int] = []
        usual = AbsentKeys.load
        monkeypatch.setattr(AbsentKeys, "load", lambda self, size: tried.append(1) or usual(self, size))
        for batch in range(6):
            checked(join, drawn(batch, 0.5))
        assert len(tried) == 1
        assert filter_bytes(join) == 0


def test_joins_on_ranges_and_times_have_no_filter(tmp_path: Path) -> None:
    since = pa.table({"id": [1, 1, 4], "since": pa.array([0, 10, 5]), "n": [1, 2, 3]})
    with forced_filters():
        with Relation.build(since, tmp_path / "h", "id", valid_from="since") as history:
            asked = pa.record_batch({"id": [1, 2, 4, 4], "t": [12, 1, 4, 5]})
            join = semistream.create("adaptivejoin", history, on="id", as_of="t", memory="1MB")
            assert pa.Table.from_batches(join.process([asked]))["n"].to_pylist() == [2, None, None, 3]
            assert history.stored.shards[0].filter is not None
            assert join._memory.absent.size is None
        with Relation.build(since.select(["id", "n"]), tmp_path / "r", "id") as relation:
            asked = pa.record_batch({"low": [0, 2, 4], "high": [1, 3, 9]})
            join = semistream.create("adaptivejoin", relation, on=["low", "high"], condition="between", memory="1MB")
            found = pa.Table.from_batches(join.process([asked]))
            assert sorted(found["low"].to_pylist()) == [0, 0, 2, 4]
            assert join._memory.absent.size is None


class Notebook:
    """Arrays in files, with notes, as tasks of a query leave them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._notes = folder, {}
        self.layouts: list[str] = []

    def __call__(self, layout: str) -> MappedArrays:
        self.layouts.append(layout)
        return MappedArrays(self._folder / hashlib.sha256(layout.encode()).hexdigest())

    def note(self, name: str) -> str:
        return self._notes.get(name, "")

    def leave_note(self, name: str, text: str) -> None:
        self._notes[name] = text


def test_arrays_in_files_get_a_filter_from_the_next_process_on(relation: Relation, tmp_path: Path) -> None:
    """The sizes of such arrays do not change while they are in use: what is found out is left as a note."""
    book, sizes = Notebook(tmp_path), []
    with chosen_filters():
        for batch in range(8):
            join = opened(relation, arrays=book)
            pages = checked(join, drawn(batch, 0.5))
            sizes.append((filter_bytes(join) > 0, pages))
    has = [one for one, _ in sizes]
    assert has[:2] == [False, True]
    assert all(has[1:])
    assert sizes[7][1] < 0.8 * sizes[0][1]
    assert len(set(book.layouts[1:])) == 1, "one cache, which stays warm"
