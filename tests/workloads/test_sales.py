from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.workloads import (
    BurstyArrivals,
    ConstantArrivals,
    KeySpace,
    MasterTable,
    PoissonArrivals,
    SalesStream,
    UniformKeys,
    ZipfKeys,
)


def test_batches_are_cut_from_one_stream() -> None:
    def stream(batch_rows: int) -> SalesStream:
        return SalesStream(
            ZipfKeys(1000, 1.0, "random", seed=3), 1000, BurstyArrivals(2e4, seed=3),
            absent_share=0.1, null_share=0.1, batch_rows=batch_rows, seed=3,
        )  # fmt: skip

    whole = stream(10_000).table()
    assert whole.num_rows == 1000
    for batch_rows in (1, 7, 64, 999, 1000):
        batches = list(stream(batch_rows).batches())
        assert {batch.num_rows for batch in batches[:-1]} <= {batch_rows}
        assert pa.Table.from_batches(batches).combine_chunks().equals(whole.combine_chunks())


@pytest.mark.parametrize("layout", ["sales", "minimal"])
def test_a_stream_is_what_its_schema_says(layout) -> None:
    stream = SalesStream(UniformKeys(50), rows=10, layout=layout, key="item")
    table = stream.table()
    assert table.schema == stream.schema
    assert "item" in table.column_names
    assert table["sale_id"].to_pylist() == list(range(10))
    assert stream.row_count == 10
    again = pickle.loads(pickle.dumps(stream))
    assert again == stream
    assert again.table().equals(table)


def test_the_minimal_tuple_has_twenty_bytes() -> None:
    schema = SalesStream(UniformKeys(50), layout="minimal").schema
    assert sum(field.type.byte_width for field in schema) == 20


@pytest.mark.parametrize("stride", [1, 2, 7])
def test_absent_and_null_keys_come_in_their_shares(stride: int) -> None:
    space = KeySpace(1000, first=500, stride=stride)
    stream = SalesStream(
        ZipfKeys(1000), 50_000, key_space=space, absent_share=0.2, null_share=0.05, layout="minimal", seed=8
    )
    keys = stream.table()["product_id"]
    assert keys.null_count / 50_000 == pytest.approx(0.05, abs=0.005)
    present = set(MasterTable(1000, key_space=space, seed=8).table()["product_id"].to_pylist())
    known = np.isin(keys.drop_null().to_numpy(), list(present))
    assert 1 - known.sum() / 50_000 - 0.05 == pytest.approx(0.2, abs=0.01)
    # Apart from those the stream is as it would have been.
    plain = SalesStream(ZipfKeys(1000), 50_000, key_space=space, layout="minimal", seed=8).table()["product_id"]
    kept = pc.is_in(keys, pa.array(sorted(present)))
    assert keys.filter(kept).equals(plain.filter(kept))


@pytest.mark.parametrize("stride", [1, 2, 3, 10])
def test_absent_keys_are_absent_and_distinct(stride: int) -> None:
    space = KeySpace(5000, first=-100, stride=stride)
    present, absent = space.present(np.arange(5000)), space.absent(np.arange(5000))
    assert np.unique(present).size == np.unique(absent).size == 5000
    assert not np.isin(absent, present).any()
    inside = (absent > present[0]) & (absent < present[-1])
    assert inside[:-1].all() if stride > 1 else not inside.any()


def test_event_times_are_the_arrivals() -> None:
    start = datetime(2025, 5, 4, 3, tzinfo=UTC)
    stream = SalesStream(UniformKeys(5), 4, ConstantArrivals(2.0), epoch=start)
    expected = [start + timedelta(seconds=second) for second in (0.25, 0.75, 1.25, 1.75)]
    assert stream.table()["event_time"].to_pylist() == expected
    arrivals = PoissonArrivals(100.0, seed=1)
    times = SalesStream(UniformKeys(5), 1000, arrivals, batch_rows=300, epoch=start).table()["event_time"]
    seconds = times.cast(pa.int64()).to_numpy() / 1e6 - start.timestamp()
    assert np.allclose(seconds, arrivals.cursor().take(1000), atol=2e-6)


def test_the_amount_is_the_quantity_at_the_price_in_the_master_table() -> None:
    space = KeySpace(300, first=7, stride=3)
    sales = SalesStream(ZipfKeys(300, 1.0, "random"), 2_000, key_space=space, seed=4).table()
    master = MasterTable(300, key_space=space, order="shuffled", seed=4).table().select(["product_id", "price"])
    joined = sales.join(master, "product_id", join_type="inner")
    assert joined.num_rows == 2_000
    cents = [pc.multiply(joined[name], 100).cast(pa.int64()).to_numpy() for name in ("amount", "price")]
    quantity = joined["quantity"].to_numpy()
    assert np.array_equal(cents[0], quantity * cents[1])
    assert set(quantity.tolist()) == set(range(1, 10))


def test_columns_do_not_follow_from_each_other() -> None:
    table = SalesStream(UniformKeys(1000), 100_000, seed=2).table()
    columns = [table[name].to_numpy() for name in ("product_id", "store_id", "quantity")]
    correlations = np.corrcoef(columns)[np.triu_indices(3, 1)]
    assert (abs(correlations) < 4 / np.sqrt(100_000)).all()


def test_a_stream_without_end() -> None:
    stream = SalesStream(UniformKeys(10), batch_rows=100)
    assert stream.row_count is None
    assert [batch.num_rows for batch in islice(stream.batches(), 5)] == [100] * 5
    with pytest.raises(ValueError, match="endless stream"):
        stream.table()


def test_a_stream_of_nothing() -> None:
    stream = SalesStream(UniformKeys(10), rows=0)
    assert list(stream.batches()) == []
    assert stream.table().num_rows == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_rows": 0}, "batch_rows"),
        ({"rows": -1}, "rows"),
        ({"stores": 0}, "stores"),
        ({"layout": "wide"}, "layout"),
        ({"null_share": -0.1}, "null_share"),
        ({"null_share": 0.6, "absent_share": 0.6}, "at most 1 together"),
        ({"key_space": KeySpace(99)}, "key space has only 99"),
    ],
)
def test_bad_streams_are_refused(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SalesStream(UniformKeys(100), **wrong)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 5, "stride": 0}, {"size": 10, "first": 2**63 - 5}])
def test_bad_key_spaces_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"size must be at least 1, not 0|stride"):
        KeySpace(**wrong)
