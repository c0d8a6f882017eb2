"""Sorting in little memory: slices are as small as is said, whatever the rows are like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from open_files import open_files
from semistream.relation.pages import sorter as module
from semistream.relation.pages.sorter import KeySorter

SCHEMA = pa.schema({"v": pa.binary()})


def batches(rows: int, width: int, seed: int = 0) -> list[tuple[np.ndarray, pa.RecordBatch]]:
    random = np.random.default_rng(seed)
    keys = random.integers(-(2**62), 2**62, rows)
    made = []
    for begin in range(0, rows, 1000):
        mine = keys[begin : begin + 1000]
        values = [int(key).to_bytes(8, "little", signed=True) * (width // 8) for key in mine]
        made.append((mine, pa.record_batch([pa.array(values, pa.binary())], schema=SCHEMA)))
    return made


@pytest.mark.parametrize(("rows", "width"), [(20_000, 1600), (5_000, 8000), (40_000, 80)])
def test_no_slice_is_larger_than_its_part_of_the_memory(tmp_path: Path, rows: int, width: int) -> None:
    given = batches(rows, width)
    size = sum(batch.nbytes for _, batch in given)
    memory = size // 8
    sorter = KeySorter(SCHEMA, tmp_path / "runs", memory)
    for keys, batch in given:
        sorter.add(keys, batch)
    found = list(sorter.sorted())
    sorter.close()
    assert max(batch.nbytes for _, batch in found) <= 1.2 * memory / 3
    keys = np.concatenate([keys for keys, _ in found])
    assert np.array_equal(keys, np.sort(np.concatenate([keys for keys, _ in given])))
    first = [int.from_bytes(value.as_py()[:8], "little", signed=True) for _, batch in found for value in batch["v"]]
    assert first == keys.tolist()


def test_no_more_of_a_column_is_put_together_than_arrow_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OF_A_COLUMN", 100_000)
    sorter = KeySorter(SCHEMA, tmp_path / "runs", 10**9)
    given = batches(5000, 80)
    for keys, batch in given:
        sorter.add(keys, batch)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    found = list(sorter.sorted())
    sorter.close()
    assert max(batch["v"].nbytes for _, batch in found) <= 60_000
    assert sum(batch.num_rows for _, batch in found) == 5000


def test_a_dictionary_that_batches_share_counts_once_and_no_file_stays_open(tmp_path: Path) -> None:
    words = pa.array([f"word {number:060d}" for number in range(2000)])
    schema = pa.schema({"word": pa.dictionary(pa.int32(), pa.string())})
    sorter = KeySorter(schema, tmp_path / "runs", 3_000_000)
    random = np.random.default_rng(1)
    for _ in range(200):  # 26 MB, if the dictionary counted in each
        numbers = pa.array(random.integers(0, 2000, 100), pa.int32())
        column = pa.DictionaryArray.from_arrays(numbers, words)
        sorter.add(numbers.to_numpy().astype(np.int64), pa.record_batch([column], schema=schema))
    assert not (tmp_path / "runs").exists()
    (tmp_path / "more").mkdir()
    spilling = KeySorter(SCHEMA, tmp_path / "more" / "runs", 30_000)
    for keys, batch in batches(20_000, 80):
        spilling.add(keys, batch)
    found = spilling.sorted()
    assert next(found)[1].num_rows > 0
    assert len(list((tmp_path / "more" / "runs").iterdir())) == 20
    assert len(open_files(tmp_path)) <= 2
    assert sum(batch.num_rows for _, batch in found) < 20_000
    spilling.close()
    assert not open_files(tmp_path)
    assert sum(batch.num_rows for _, batch in sorter.sorted()) == 20_000


@pytest.mark.parametrize("giant", [5, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("kind", [pa.binary(), pa.binary_view()], ids=str)
def test_a_key_with_more_rows_than_the_memory_holds_comes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, giant: int, kind: pa.DataType
) -> None:
    """Its rows stay in order, and those of its neighbours, too."""
    monkeypatch.setattr(module, "_BLOCK", 256)
    schema = pa.schema({"v": kind, "row": pa.int64()})
    random, given = np.random.default_rng(2), []
    for begin in range(0, 40_000, 1000):
        keys = np.where(random.random(1000) < 0.8, giant, random.integers(-1000, 1000, 1000))
        columns = [pa.array([b"x" * 72] * 1000, kind), pa.array(np.arange(begin, begin + 1000))]
        given.append((keys, pa.record_batch(columns, schema=schema)))
    sorter, memory = KeySorter(schema, tmp_path / "runs", 600_000), 600_000
    for keys, batch in given:
        sorter.add(keys, batch)
    found = list(sorter.sorted())
    sorter.close()
    assert max(batch.num_rows * 96 for _, batch in found) <= 1.2 * memory / 3
    assert len(found) < 60, "no more parts than need be"
    keys = np.concatenate([keys for keys, _ in given])
    assert np.array_equal(np.concatenate([keys for keys, _ in found]), np.sort(keys))
    rows = np.concatenate([batch["row"].to_numpy() for _, batch in found])
    assert np.array_equal(rows, np.argsort(keys, kind="stable"))


def test_a_key_with_rows_far_longer_than_others_comes_in_parts(tmp_path: Path) -> None:
    """Few rows, so that a count of rows does not tell."""
    sorter, memory = KeySorter(SCHEMA, tmp_path / "runs", 1_500_000), 1_500_000
    for keys, batch in batches(100_000, 8):
        sorter.add(keys, batch)
        long = pa.record_batch([pa.array([b"x" * 5000] * 5)], schema=SCHEMA)
        sorter.add(np.full(5, 7), long)
    found = list(sorter.sorted())
    sorter.close()
    assert max(batch.nbytes for _, batch in found) <= 1.2 * memory / 3
    assert sum(batch.num_rows for _, batch in found) == 100_500
