"""SSIJ: tuples that leave by a deadline."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from semistream.core.clock import VirtualClock
from semistream.joins.ssij.ssij import Ssij
from semistream.joins.ssij.ssij_schedule import Deadlines
from semistream.relation.relation import Relation
from ssij_cases import simulated, ssij, zipf_keys


def drive(
    join: Ssij, clock: VirtualClock, arrivals: NDArray[np.float64], keys: NDArray[np.int64], allowed: float
) -> int:
    """Let tuples arrive one by one in virtual time, each with a deadline; return how many results came out."""
    stream = pa.record_batch({"id": keys, "deadline": arrivals + allowed})
    results, at = 0, 0
    while at < keys.size or join.pending:
        moments = [moment for moment in (join.due, arrivals[at] if at < keys.size else None) if moment is not None]
        clock.advance_to(min(moments))
        arrived = int(np.searchsorted(arrivals, clock.now(), side="right"))
        while at < arrived:
            taken = join.offer(stream.slice(at, arrived - at))
            at += taken
            results += sum(batch.num_rows for batch in join.step())
        results += sum(batch.num_rows for batch in join.step())
    return results


SEEK, TRANSFER = 0.0085, 2e-5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("jitter", [0.0, 0.9])
@pytest.mark.parametrize("share", [0.25, 0.85])
@pytest.mark.slow
def test_no_deadline_is_missed_at_feasible_rates(skewed: Relation, share: float, jitter: float) -> None:
    """Deadlines are met at any rate for which the model has two join phases, at their worst, in the time allowed."""
    allowed, clock = 20.0, VirtualClock()
    relation = simulated(skewed, clock, SEEK, TRANSFER)
    join = ssij(
        relation, on="id", deadline="deadline", clock=clock, memory="40%", input_tuples=10**6, buffer_tuples=10**6,
        input_limit=10**6, schema=pa.schema({"id": pa.int64(), "deadline": pa.float64()}),
    )  # fmt: skip
    # while one join phase runs, tuples of the next arrive; each may cost what its tuples cost by random reads
    rate = share * (allowed / 2) / (SEEK + TRANSFER) / allowed
    count = int(rate * 150)
    generator = np.random.default_rng(0)
    arrivals = np.sort(np.arange(count) / rate + jitter * generator.random(count) / rate)
    assert drive(join, clock, arrivals, zipf_keys(count, 60_000), allowed) == count
    assert join.missed_deadlines == 0
    assert join.join_phases >= 150 / allowed / 2, "tuples were not made to wait for no reason"
    assert join.join_phases < count / 20, "join phases were not batches"
    join.check()


def test_misses_are_counted_where_the_rate_is_not_feasible(skewed: Relation) -> None:
    clock = VirtualClock()
    join = ssij(simulated(skewed, clock, 0.0085, 0.01), on="id", deadline="deadline", clock=clock, memory="5%")
    arrivals = np.arange(4000) / 2000.0
    assert drive(join, clock, arrivals, zipf_keys(4000, 60_000, exponent=0.1), 0.5) == 4000
    assert join.missed_deadlines > 400


def test_urgent_tuples_leave_first(skewed: Relation) -> None:
    clock = VirtualClock()
    join = ssij(
        simulated(skewed, clock), on="id", deadline="deadline", clock=clock, memory="20%", input_tuples=100,
        input_limit=10**6, buffer_tuples=100,
    )  # fmt: skip
    moments = np.random.default_rng(0).permutation(1000) * 1000.0 + 5000
    stream = pa.record_batch({"id": np.arange(1000) * 60, "deadline": moments})
    assert join.offer(stream) == 1000
    left = [result.column("deadline").to_pylist() for result in [*join.step(), *join.step(), *join.step()]]
    assert sorted(moment for part in left for moment in part) == sorted(moments)[: sum(map(len, left))]
    assert 100 <= sum(map(len, left)) < 1000
    list(join.drain())


def test_no_deadline_no_hurry(skewed: Relation) -> None:
    clock = VirtualClock()
    join = ssij(simulated(skewed, clock), on="id", deadline="deadline", clock=clock, memory="20%")
    stream = pa.record_batch({"id": [1, 2, 3], "deadline": pa.array([None, None, None], pa.float64())})
    assert join.due is None
    join.offer(stream)
    assert join.due is None
    assert list(join.step()) == []
    join.offer(pa.record_batch({"id": [4], "deadline": [9.0]}))
    assert join.due is not None
    assert 8.9 < join.due < 9.0, "one page to read, and its time is set aside"
    clock.advance_to(join.due)
    assert list(join.step()) == [], "looked up; all four turn out to need the same page, so there is time left"
    clock.advance_to(join.due)
    assert sum(result.num_rows for result in join.step()) == 4
    assert clock.now() <= 9.0
    assert join.missed_deadlines == 0
    assert join.due is None


def test_seconds_after_the_offer(skewed: Relation) -> None:
    clock = VirtualClock(start=100.0)
    join = ssij(simulated(skewed, clock), on="id", deadline=5.0, clock=clock, memory="20%")
    join.offer(pa.record_batch({"id": [7, 50_000]}))
    assert join.due is not None
    assert 104.9 < join.due < 105.0
    assert list(join.step()) == []
    clock.advance(4.5)
    assert list(join.step()) == []
    clock.advance_to(join.due)
    assert sum(result.num_rows for result in join.step()) == 2
    assert join.missed_deadlines == 0


def test_a_deadline_counts_from_the_offer_however_long_the_tuple_is_kept_outside(skewed: Relation) -> None:
    """The input buffer has room for four: the others are taken in turns later, and are due no later for that."""
    clock = VirtualClock(start=100.0)
    join = ssij(
        simulated(skewed, clock), on="id", deadline=5.0, clock=clock, memory="20%", input_tuples=4, input_limit=4,
        buffer_tuples=2,
    )  # fmt: skip
    assert join.offer(pa.record_batch({"id": np.arange(6) * 5000})) == 6
    clock.advance(1.0)
    assert join.offer(pa.record_batch({"id": np.arange(6, 9) * 5000})) == 3
    clock.advance(8.0)  # too late for all of them
    left = sum(result.num_rows for result in join.step())
    assert 4 <= left < 9, "some are taken in only now"
    left += sum(result.num_rows for result in join.drain())
    assert left == 9
    assert join.missed_deadlines == 9


def test_offers_that_find_no_room_take_no_memory_of_their_own() -> None:
    """One row an offer, and none is taken in: those beyond some moments count as come with the last of these."""
    clock = VirtualClock(start=100.0)
    deadlines = Deadlines(5.0, clock)
    for outside in range(1, 1001):
        deadlines.offered(outside)
        clock.advance(0.001)
    dues = deadlines.of(pa.record_batch({"id": np.arange(1000)}))
    offered = 100.0 + 0.001 * np.arange(1000)
    assert np.all(dues <= offered + 5.0 + 1e-9), "none leaves later than it should"
    assert np.allclose(dues[:64], offered[:64] + 5.0)
    assert np.unique(dues).size == 64
    deadlines.taken_in(999)
    assert deadlines.of(pa.record_batch({"id": [1]}))[0] == dues[-1]
