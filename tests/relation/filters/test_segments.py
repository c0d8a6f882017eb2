"""Segments of keys: a present key is always found, and absent ones are mistaken as seldom as promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semistream.core.arrays import Ints
from semistream.relation.filters import filter_writer
from semistream.relation.filters.filter_writer import FilterWriter
from semistream.relation.filters.key_filter import KeyFilter, filter_sizes, load_filters
from semistream.relation.storage.shard_files import ShardFilter

LOW, HIGH = -(2**63), 2**63 - 1
RANDOM = np.random.default_rng(38)
KEYS: dict[str, Ints] = {
    "one": np.array([7]),
    "both ends": np.array([LOW, HIGH]),
    "dense": np.arange(-700, 2500),
    "every third": np.arange(0, 30_000, 3),
    "gaps": np.unique(RANDOM.integers(0, 200_000, 10_000)),
    "anywhere": np.unique(RANDOM.integers(LOW, HIGH, 20_000)),
    "heaps": np.unique(np.concatenate([RANDOM.integers(LOW, HIGH, 50), np.arange(3000), 10**12 + np.arange(999) * 7])),
    "at the least": np.arange(LOW, LOW + 1500),
    "at the greatest": np.arange(HIGH - 1500, HIGH),
    "segments end": np.arange(filter_writer.BLOCK_KEYS * 2) * 5,
}


@pytest.fixture(autouse=True)
def _of_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_writer, "LEAST_KEYS", 1)


def written(folder: Path, keys: Ints, cuts: int = 3) -> ShardFilter:
    writer = FilterWriter(folder / "s.filter", "s.index")
    for part in np.array_split(np.repeat(keys, 2), cuts):  # a key may occur again, also in the next part
        writer.add(part)
    entry = writer.close()
    assert entry is not None
    assert entry.keys == keys.size
    assert (folder / "s.filter").stat().st_size == entry.nbytes
    return entry


def loaded(folder: Path, entry: ShardFilter, planes: int) -> KeyFilter:
    found = load_filters(folder, [entry], planes)
    assert found is not None
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_r_are_found_whatever_is_left_out(tmp_path: Path, kind: str) -> None:
    keys = KEYS[kind]
    entry = written(tmp_path, keys)
    near = np.unique(np.concatenate([keys, keys[keys < HIGH] + 1, keys[keys > LOW] - 1, [LOW, HIGH, 0]]))
    absent, before = np.setdiff1d(near, keys), None
    for planes in range(7):
        filter = loaded(tmp_path, entry, planes)
        assert filter.may_have(keys).all()
        mistaken = filter.may_have(absent)
        assert before is None or not (mistaken & ~before).any(), "more bits make no more mistakes"
        before = mistaken
    assert entry.hashed or before is None or not before.any(), "distances are exact"


@pytest.mark.parametrize("planes", range(7))
def test_share_of_mistakes_and_bytes_are_as_estimated(tmp_path: Path, planes: int) -> None:
    keys = KEYS["anywhere"]
    entry = written(tmp_path, keys)
    filter = loaded(tmp_path, entry, planes)
    size = filter_sizes([entry])[planes]
    assert (size.planes, size.nbytes) == (planes, filter.nbytes)
    absent = np.setdiff1d(np.random.default_rng(2).integers(LOW, HIGH, 200_000), keys)
    mistaken = float(filter.may_have(absent).mean())
    assert mistaken == pytest.approx(size.mistaken, rel=0.1)
    assert mistaken < 0.011 or planes < 6
    assert 8 * filter.nbytes / keys.size < 3 + planes


def test_dense_keys_take_few_bits(tmp_path: Path) -> None:
    sizes = filter_sizes([written(tmp_path, KEYS["dense"])])
    assert [size.mistaken for size in sizes] == [0.0]
    assert 8 * sizes[0].nbytes / KEYS["dense"].size < 1.5


def test_few_keys_have_no_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_writer, "LEAST_KEYS", 100)
    writer = FilterWriter(tmp_path / "s.filter", "s.index")
    writer.add(np.repeat(np.arange(99), 5))
    assert writer.close() is None
    assert not (tmp_path / "s.filter").exists()


def test_any_cut_gives_the_same_file(tmp_path: Path) -> None:
    keys, contents = KEYS["segments end"], set()
    for cuts in (1, 2, 50):
        written(tmp_path, keys, cuts)
        contents.add((tmp_path / "s.filter").read_bytes())
        (tmp_path / "s.filter").unlink()
    assert len(contents) == 1
