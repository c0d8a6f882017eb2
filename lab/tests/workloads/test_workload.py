from __future__ import annotations

import pickle

import numpy as np
import pytest

from semistream.workloads import BurstyArrivals
from semistream_lab.benchmarks.generators import measure
from semistream_lab.workloads import Workload
from semistream_lab.workloads.workload import locality, one_to_many, weather, zipf

SMALL: list[Workload] = [
    zipf(5_000, 2_000, exponent=0.5, shape="random", arrivals=BurstyArrivals(1000.0), seed=1),
    one_to_many(10, 5_000, 2_000, seed=1),
    locality(2_000, 4_000, seed=1),
    weather(2_000, 100_000, seed=1),
]


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_streams_find_their_master_tuples(workload: Workload) -> None:
    stream, master = workload.stream.table(), workload.master.table()
    assert stream.schema.field(workload.stream_key).type == master.schema.field(workload.master_key).type
    keys = stream[workload.stream_key].to_numpy()
    found = np.isin(keys, master[workload.master_key].to_numpy())
    if workload.name == "weather":
        # At this size most longitudes that only ships report have no row on disk; those of stations do.
        found = found[stream["land"].to_numpy() == 1]
    assert found.size > 1_000
    assert found.all()


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_a_workload_can_be_sent_elsewhere(workload: Workload) -> None:
    again = pickle.loads(pickle.dumps(workload))
    assert again == workload
    assert again.stream.table().equals(workload.stream.table())


def test_the_papers_sizes_are_the_defaults() -> None:
    assert zipf().master.row_count == 100_000_000
    assert zipf().master.row_bytes == 120
    assert one_to_many(1).master.row_count == one_to_many(400).master.row_count == 80_000_000
    assert locality().master.row_count == 80_000_000
    assert locality().stream.row_count == 40_000_000
    assert (weather().stream.row_count, weather().master.row_count) == (6_000_000, 20_000_000)


def test_the_relation_of_one_to_many_keeps_its_size() -> None:
    for rows_per_key in (1, 5, 100):
        workload = one_to_many(rows_per_key, 1_000, 100)
        counts = np.bincount(workload.master.table()["product_id"].to_numpy())
        assert counts.tolist() == [rows_per_key] * (1_000 // rows_per_key)


def test_the_locality_stream_crosses_the_relation_once() -> None:
    keys = locality(2_000, 4_000, seed=1).stream.table()["product_id"].to_numpy()
    assert np.array_equal(keys // 100, np.repeat(np.arange(20), 200))


def test_throughput_is_measured_for_every_generator() -> None:
    rates = dict(measure(seconds=0.0))
    assert len(rates) > 10
    assert any("Zipf" in name for name in rates)
    assert all(rate > 0 for rate in rates.values())
