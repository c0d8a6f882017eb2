from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.workloads import KeySpace, MasterTable
from semistream.workloads.made_columns import filler_text
from semistream.workloads.products import prices


def value_bytes(table: pa.Table) -> np.ndarray:
    """Bytes of the values of each row."""
    total = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        if pa.types.is_string(column.type):
            total += pc.binary_length(column).to_numpy()
        else:
            total += column.type.byte_width
    return total


@pytest.mark.parametrize("layout", ["product", "minimal"])
@pytest.mark.parametrize("row_bytes", [64, 120, 128, 1000, 100_000])
def test_rows_have_the_bytes_asked_for(layout, row_bytes: int) -> None:
    table = MasterTable(300, row_bytes=row_bytes, layout=layout).table()
    assert (value_bytes(table) == row_bytes).all()
    assert all(column.null_count == 0 for column in table.columns)


@pytest.mark.parametrize("layout", ["product", "minimal"])
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
@pytest.mark.parametrize("rows_per_key", [1, 4])
def test_any_stretch_can_be_made_alone(layout, order, rows_per_key: int) -> None:
    master = MasterTable(1000, rows_per_key, layout=layout, order=order, batch_rows=333, seed=5)
    table = master.table().combine_chunks()
    assert table.schema == master.schema
    assert table.num_rows == master.row_count == 1000
    for start, count in ((0, 1), (17, 600), (999, 1), (500, 0)):
        assert pa.table(master.batch(start, count)).equals(table.slice(start, count).combine_chunks())
    assert pickle.loads(pickle.dumps(master)).table().combine_chunks().equals(table)


@pytest.mark.parametrize("rows_per_key", [1, 2, 400])
def test_every_key_has_its_rows(rows_per_key: int) -> None:
    master = MasterTable(4000, rows_per_key, key_space=KeySpace(4000 // rows_per_key, first=3, stride=5))
    table = master.table()
    keys, counts = np.unique(table["product_id"].to_numpy(), return_counts=True)
    assert np.array_equal(keys, 3 + 5 * np.arange(master.key_count))
    assert (counts == rows_per_key).all()
    pairs = {*zip(table["product_id"].to_pylist(), table["variant"].to_pylist(), strict=True)}
    assert len(pairs) == 4000


@pytest.mark.parametrize("layout", ["product", "minimal"])
def test_shuffling_moves_rows_and_changes_none(layout) -> None:
    tables = [MasterTable(2000, 4, layout=layout, order=order, seed=6).table() for order in ("sorted", "shuffled")]
    assert (np.diff(tables[0]["product_id"].to_numpy()) >= 0).all()
    assert abs(np.corrcoef(tables[1]["product_id"].to_numpy(), np.arange(2000))[0, 1]) < 0.1
    tie = "variant" if layout == "product" else "row"
    ordered = [table.sort_by([("product_id", "ascending"), (tie, "ascending")]) for table in tables]
    assert ordered[0].combine_chunks().equals(ordered[1].combine_chunks())


def test_products_look_like_products() -> None:
    table = MasterTable(5000, seed=1).table()
    assert len(set(table["name"].to_pylist())) == 5000
    assert 10 <= len(set(table["category"].to_pylist())) <= 20
    cents = prices(1, np.arange(5000))
    assert 99 <= cents.min() < np.median(cents) < cents.mean() < cents.max() < 100_099
    assert all(text.isascii() for text in table["description"].to_pylist())
    assert len(set(table["description"].to_pylist())) > 4500


def test_payloads_tell_rows_apart() -> None:
    table = MasterTable(10_000, 100, layout="minimal", seed=1).table()
    assert len(set(table["filler"].to_pylist())) == 10_000
    assert table.take([0])["filler"] != MasterTable(10_000, 100, layout="minimal", seed=2).table()["filler"][0]


def test_a_table_of_any_size_costs_only_what_is_asked_for() -> None:
    master = MasterTable(100_000_000_000, layout="minimal", order="shuffled")
    batch = master.batch(99_999_999_990, 10)
    assert batch.num_rows == 10
    assert len(set(batch["product_id"].to_pylist())) == 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 0}, "multiple of rows_per_key"),
        ({"rows": 10, "rows_per_key": 3}, "multiple of rows_per_key = 3, not 10"),
        ({"rows": 10, "row_bytes": 20}, "row_bytes must be at least"),
        ({"rows": 10, "layout": "minimal", "row_bytes": 16}, "at least 17"),
        ({"rows": 10, "layout": "x"}, "layout"),
        ({"rows": 10, "order": "x"}, "order"),
        ({"rows": 10, "batch_rows": 0}, "batch_rows"),
        ({"rows": 10, "key_space": KeySpace(11)}, "11 keys, but the table has 10"),
    ],
)
def test_bad_tables_are_refused(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MasterTable(**wrong)


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (0, -1), (5, 6), (11, 0)])
def test_rows_outside_are_refused(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="not in a table of 10 rows"):
        MasterTable(10).batch(start, count)


def test_more_text_than_a_column_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer rows per batch"):
        filler_text(0, np.arange(3), np.full(3, 2**30))
