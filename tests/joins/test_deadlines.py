"""``deadline=`` names a column: it is checked before the stream comes, and may be of timestamps."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.clock import VirtualClock
from semistream.core.errors import UnsupportedJoinError
from semistream.relation.relation import Relation

TIMED = ["adaptivejoin", "ssij"]
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory):
    path: Path = tmp_path_factory.mktemp("deadlines") / "r"
    with Relation.build(pa.table({"id": np.arange(100), "v": np.arange(100)}), path, "id") as relation:
        yield relation


@pytest.mark.parametrize("algorithm", TIMED)
def test_a_column_that_cannot_hold_deadlines_is_refused_when_the_schema_is_known(relation, algorithm):
    for schema, said in (
        (pa.schema({"id": pa.int64()}), r"deadline='by' must be a column of the stream; the stream has id"),
        (pa.schema({"id": pa.int64(), "buy": pa.int64()}), r"did you mean 'buy'\?"),
        (pa.schema([("id", pa.int64()), ("by", pa.int64()), ("by", pa.int64())]), "2 columns of that name"),
        (pa.schema({"id": pa.int64(), "by": pa.string()}), "a column of type string, but a deadline is a timestamp"),
        (pa.schema({"id": pa.int64(), "by": pa.date32()}), r"a column of type date32\[day\].*cast the column first"),
    ):
        with pytest.raises(UnsupportedJoinError, match=said):
            semistream.create(algorithm, relation, on="id", memory="2MB", deadline="by", schema=schema)


@pytest.mark.parametrize("algorithm", TIMED)
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_timestamps_are_moments_of_the_calendar(relation, algorithm, zone):
    """One deadline has passed, one is in an hour, one is NULL."""
    for unit, ticks in UNITS.items():
        now = time.time()
        by = pa.array([int((now - 3600) * ticks), int((now + 3600) * ticks), None], pa.timestamp(unit, zone))
        batch = pa.record_batch({"id": [1, 2, 3], "by": by})
        join = semistream.create(algorithm, relation, on="id", memory="2MB", deadline="by", schema=batch.schema)
        result = pa.Table.from_batches(join.process([batch]))
        assert sorted(result["v"].to_pylist()) == [1, 2, 3]
        assert join.missed_deadlines == 1


@pytest.mark.parametrize("algorithm", TIMED)
def test_what_is_counted_in_seconds_stays_so(relation, algorithm):
    soon = [10, 60, None]
    for by in (
        pa.array(soon, pa.int64()), pa.array(soon, pa.float32()), pa.array([10.0, np.nan, None], pa.float64()),
        pa.array([10, 60, None], pa.timestamp("s")), pa.array([10.0, np.inf, None]),
        pa.array([10.0, 60.0, None]).dictionary_encode(),
    ):  # fmt: skip
        clock = VirtualClock(30.0)
        batch = pa.record_batch({"id": [1, 2, 3], "by": by})
        join = semistream.create(
            algorithm, relation, on="id", memory="2MB", deadline="by", schema=batch.schema, clock=clock
        )
        assert pa.Table.from_batches(join.process([batch])).num_rows == 3
        assert join.missed_deadlines == 1, by.type


@pytest.mark.parametrize("algorithm", TIMED)
@pytest.mark.parametrize("ticks", UNITS.values(), ids=UNITS)
def test_moments_of_the_calendar_are_refused_as_numbers(relation, algorithm, ticks):
    """They would never fall due. Nothing of the batch is taken, and the join goes on."""
    moment = int(time.time() * ticks)
    join = semistream.create(algorithm, relation, on="id", memory="2MB", deadline="by")
    wrong = pa.record_batch({"id": np.arange(50_000) % 100, "by": pa.array([1] * 49_999 + [moment])})
    for batch in (wrong, wrong.set_column(1, "by", wrong["by"].dictionary_encode())):
        with pytest.raises(UnsupportedJoinError, match=rf"'by' has the value {moment}.*seconds.*timestamps.*NULL"):
            join.offer(batch)
    assert join.pending == 0
    right = wrong.set_column(1, "by", pa.array([1] * 49_999 + [None], pa.int64()))
    assert sum(result.num_rows for result in join.process([right])) == 50_000


@pytest.mark.parametrize("algorithm", TIMED)
def test_a_clock_that_shows_the_calendar_takes_its_seconds(relation, algorithm):
    clock = VirtualClock(1_795_006_464.0)
    batch = pa.record_batch({"id": [1, 2], "by": [1_795_006_400, 1_795_006_500]})
    join = semistream.create(algorithm, relation, on="id", memory="2MB", deadline="by", clock=clock)
    assert sum(result.num_rows for result in join.process([batch])) == 2
    assert join.missed_deadlines == 1
