"""What is right: an answer's rows and sum, whatever their order, and every byte counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream_lab.benchmarks.peers.dataset import Dataset
from semistream_lab.benchmarks.tournament.answers import Answer, right_answer
from semistream_lab.workloads.catalogue import CatalogueTable
from semistream_lab.workloads.workload import zipf


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = Dataset(str(tmp_path_factory.mktemp("answers")), 1_000, 43)
    made.write()
    return made


def stream(count: int = 500) -> pa.RecordBatch:
    table = zipf(1_000, count, 1.0, "random", row_bytes=43).stream.table().combine_chunks()
    return table.to_batches()[0]


def joined(data: Dataset, batch: pa.RecordBatch) -> pa.Table:
    import pyarrow.parquet as pq

    return pa.Table.from_batches([batch]).join(pq.read_table(data.parquet), "product_id", join_type="inner")


def added(table: pa.Table, pieces: int = 100) -> Answer:
    answer = Answer()
    for piece in table.combine_chunks().to_batches(max_chunksize=pieces):
        answer.add(piece)
    return answer


def test_any_order_and_any_pieces(data: Dataset) -> None:
    batch = stream()
    right = right_answer(batch, data)
    table = joined(data, batch)
    assert right.rows == 500
    assert added(table) == right
    assert added(table.take(np.random.default_rng(1).permutation(500)), 7) == right
    as_any_length = table.set_column(table.column_names.index("filler"), "filler", table["filler"].cast(pa.binary()))
    assert added(as_any_length) == right


def test_every_byte_counts(data: Dataset) -> None:
    batch = stream()
    right, table = right_answer(batch, data), joined(data, batch)
    last = table["filler"].to_pylist()
    last[3] = last[3][:-1] + bytes([last[3][-1] ^ 1])
    at = table.column_names.index("filler")
    assert added(table.set_column(at, "filler", pa.array(last, table["filler"].type))) != right
    swapped = table["row"].to_pylist()
    swapped[0], swapped[1] = swapped[1], swapped[0]
    at = table.column_names.index("row")
    assert table["row"][0] != table["row"][1]
    assert added(table.set_column(at, "row", pa.array(swapped))) != right


def test_keys_without_a_partner_are_left_out(data: Dataset) -> None:
    batch = stream()
    keys = batch["product_id"].to_numpy().copy()
    keys[:10] += 1_000_000
    batch = batch.set_column(0, "product_id", pa.array(keys))
    assert right_answer(batch, data).rows == 490
    assert right_answer(batch, data) == added(joined(data, batch))


def test_r_is_written_once(data: Dataset) -> None:
    before = data.parquet.stat().st_mtime_ns
    data.write()
    assert data.parquet.stat().st_mtime_ns == before
    keys = np.concatenate([keys for keys, _ in data.parts()])
    assert keys.tolist() == sorted(keys.tolist())
    assert list(Path(data.place).iterdir()) == [data.parquet], "nothing unfinished is left"


def test_texts_dates_and_nulls_count() -> None:
    batch = CatalogueTable(500, stride=2).batch(0, 500)
    whole, pieces, shuffled = Answer(), Answer(), Answer()
    whole.add(batch)
    for at in range(0, 500, 7):  # a piece may have no NULL, or no value
        pieces.add(batch.slice(at, 7))
    shuffled.add(batch.take(pa.array(np.random.default_rng(1).permutation(500))))
    assert whole == pieces == shuffled
    for number, name in enumerate(batch.schema.names):
        values = batch.column(number).to_pylist()
        other = next(value for value in values if value != values[0])
        changed = Answer()
        column = pa.array([other, *values[1:]], batch.schema.field(number).type)
        changed.add(batch.set_column(number, batch.schema.field(number), column))
        assert changed != whole, name
