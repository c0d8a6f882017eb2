"""SSIJ: range joins, elastic memory, deadlines, updates, and the comparators of its paper."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import semistream
from semistream.core.clock import VirtualClock
from semistream.core.errors import (
    BudgetExceededError,
    KeyColumnError,
    KeyTypeError,
    SemistreamError,
    UnsupportedJoinError,
)
from semistream.joins.base import Join
from semistream.joins.checking import assert_same_rows, run
from semistream.joins.front_stage import FrontStage
from semistream.joins.ssij import Ssij
from semistream.relation.overlay import Change
from semistream.relation.relation import Relation
from semistream.relation.simulated import MemoryPages, SimulatedDevice

BETWEEN: dict[str, Any] = {"on": ("low", "high"), "condition": "between"}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("relations")


def ssij(relation: Relation, **options: Any) -> Ssij:
    join = semistream.create("ssij", relation, **options)
    assert isinstance(join, Ssij)
    return join


def simulated(relation: Relation, clock: VirtualClock, seek: float = 0.0085, transfer: float = 8e-5) -> Relation:
    """Return the same relation of one shard on a device whose time is virtual."""
    frames = relation.frames(relation.page_count)
    relation.read(np.arange(relation.page_count), frames)
    device = SimulatedDevice(MemoryPages(frames), seek_seconds=seek, transfer_seconds=transfer, clock=clock)
    return Relation(
        relation.schema, relation.key, device, relation.indexes, [relation.page_count],
        rows=relation.row_count, unique=relation.unique, clustered=relation.clustered,
    )  # fmt: skip


def zipf_keys(count: int, keys: int, seed: int = 0, exponent: float = 1.0) -> NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), generator.random(count))
    return np.random.default_rng(99).permutation(keys)[np.minimum(ranks, keys - 1)]


# -- range joins ------------------------------------------------------------------------------------------


def answer(stream: pa.Table, master: pa.Table, how: str) -> pa.Table:
    kind = "LEFT JOIN" if how == "left" else "JOIN"
    return duckdb.sql(
        f"SELECT s.*, r.* FROM stream s {kind} master r ON r.id BETWEEN s.low AND s.high"
    ).to_arrow_table()


def check_ranges(join: Join, stream: pa.Table, master: pa.Table, batch: int = 50) -> None:
    outcome = run(join, stream.to_batches(batch), audit=True)
    wanted = answer(stream, master, join.how).cast(outcome.table.schema)
    assert_same_rows(outcome.table, wanted, f"{join.id}, {join.how}")
    assert outcome.stats.rows_in == outcome.stats.rows_done == stream.num_rows
    assert join.budget.peak <= join.budget.total or not join.bounded


bounds = st.none() | st.integers(-20, 120)


@settings(max_examples=30)
@given(
    keys=st.lists(st.integers(0, 100), max_size=400),
    ranges=st.lists(st.tuples(bounds, bounds), min_size=1, max_size=60),
    shards=st.integers(1, 3),
    how=st.sampled_from(["inner", "left"]),
    factor=st.sampled_from([1.0, 1.05, 1.5, 40.0]),
    batch=st.sampled_from([1, 7, 50]),
    algorithm=st.sampled_from(["ssij", "oracle"]),
)
def test_range_joins_equal_duckdb(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[int],
    ranges: list[tuple[int | None, int | None]],
    shards: int,
    how: str,
    factor: float,
    batch: int,
    algorithm: str,
) -> None:
    master = pa.table({"id": pa.array(keys, pa.int64()), "value": pa.array([f"v{i}" for i in range(len(keys))])})
    stream = pa.table(
        {
            "low": pa.array([low for low, _ in ranges], pa.int64()),
            "n": np.arange(len(ranges)),
            "high": pa.array([high for _, high in ranges], pa.int64()),
        }
    )
    path = tmp_path_factory.mktemp("r") / "r"
    with Relation.build(master, path, "id", page_size=512, shards=shards) as relation:
        least = Ssij.minimum_memory(relation, stream.schema, **BETWEEN)
        join = semistream.create(
            algorithm, relation, how=how, memory=int(least * factor), schema=stream.schema, **BETWEEN
        )
        check_ranges(join, stream, master, batch)


def test_a_range_over_all_of_r_within_the_least_memory(folder: Path) -> None:
    master = pa.table({"id": np.arange(5000), "value": np.arange(5000) * 3})
    stream = pa.table({"low": [0, 4999, -5, 100], "high": [4999, 9999, -1, 90], "n": [1, 2, 3, 4]})
    with Relation.build(master, folder / "r", "id", page_size=512) as relation:
        least = Ssij.minimum_memory(relation, stream.schema, **BETWEEN)
        join = ssij(relation, how="left", memory=least, schema=stream.schema, **BETWEEN)
        check_ranges(join, stream, master, 1)
        assert join.join_phases > 3, "all pages at once cannot have fitted"


@pytest.mark.parametrize(
    ("kind", "values", "lows", "highs"),
    [
        (pa.int8(), [-128, -5, 0, 127], [-1000, 100, 200, -128], [1000, 2**40, 300, -127]),
        (pa.uint64(), [0, 5, 2**64 - 1], [-3, 2**63 - 1, -9, 6], [4, 2**63 - 1, -8, 9]),
        (pa.int64(), [-(2**63), 0, 2**63 - 1], [-(2**63), 1, 5, 0], [0, 2**63 - 1, 4, 0]),
    ],
)
def test_integer_bounds_of_any_width(
    folder: Path, kind: pa.DataType, values: list[int], lows: list[int], highs: list[int]
) -> None:
    master = pa.table({"id": pa.array(values, kind), "value": np.arange(len(values))})
    stream = pa.table({"low": pa.array(lows, pa.int64()), "high": pa.array(highs, pa.int64()), "n": np.arange(4)})
    with Relation.build(master, folder / "r", "id") as relation:
        for how in ("inner", "left"):
            join = ssij(relation, how=how, **BETWEEN)
            found = run(join, stream.to_batches()).table
            pairs = [
                (n, value)
                for n, low, high in zip(range(4), lows, highs, strict=True)
                for value in ([v for v in values if low <= v <= high] or ([None] if how == "left" else []))
            ]
            assert sorted(zip(found["n"].to_pylist(), found["id"].to_pylist(), strict=True), key=repr) == sorted(
                pairs, key=repr
            )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [datetime.date(2020, 1, day) for day in range(1, 29)]),
        (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, hour, tzinfo=datetime.UTC) for hour in range(24)]),
        (pa.decimal128(10, 2), [Decimal(cents) / 4 for cents in range(-40, 40)]),
    ],
)
def test_dates_moments_and_decimals(folder: Path, kind: pa.DataType, values: list[Any]) -> None:
    master = pa.table({"id": pa.array(values, kind), "value": np.arange(len(values))})
    stream = pa.table(
        {"low": pa.array([values[3], values[9], None], kind), "high": pa.array([values[7], values[8], values[9]], kind)}
    )
    with Relation.build(master, folder / "r", "id", page_size=512) as relation:
        join = ssij(relation, how="left", **BETWEEN)
        found = pa.Table.from_batches(join.process(stream.to_batches()))
        assert found.schema.field("id").type == kind
        assert sorted(found["id"].to_pylist(), key=repr) == sorted([*values[3:8], None, None], key=repr)


def test_a_name_on_both_sides_and_rows_larger_than_a_page(folder: Path) -> None:
    master = pa.table({"id": np.arange(300), "note": [f"r{i}" for i in range(300)]})
    notes = [("long " * 2000) if i % 5 == 0 else "short" for i in range(40)]
    stream = pa.table({"low": np.arange(40) * 10, "high": np.arange(40) * 10 + 25, "note": notes})
    with Relation.build(master, folder / "r", "id", page_size=512) as relation:
        join = ssij(relation, how="left", memory="200KB", **BETWEEN)
        outcome = run(join, stream.to_batches(11), audit=True)
        assert outcome.table.schema.names == ["low", "high", "note", "id", "note_right"]
        wanted = answer(stream, master, "left").rename_columns(outcome.table.schema.names)
        assert_same_rows(outcome.table, wanted.cast(outcome.table.schema))


def test_ranges_that_cannot_be(folder: Path) -> None:
    numbers = Relation.build(pa.table({"id": [1], "v": [1]}), folder / "n", "id")
    words = Relation.build(pa.table({"id": ["a"], "v": [1]}), folder / "w", "id")
    pairs = Relation.build(pa.table({"a": [1], "b": [2]}), folder / "p", ["a", "b"])
    moments = Relation.build(pa.table({"id": pa.array([0], pa.timestamp("s")), "v": [1]}), folder / "t", "id")
    heap = Relation.build(pa.table({"id": [1], "v": [1]}), folder / "h", "id", clustered=False)
    schema = pa.schema({"low": pa.int64(), "high": pa.int64()})
    with pytest.raises(UnsupportedJoinError, match=r"hashed.*date"):
        ssij(words, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match="hashed"):
        ssij(pairs, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match="clustered=True"):
        ssij(heap, **BETWEEN)
    with pytest.raises(KeyColumnError, match=r"on=\('low', 'high'\)"):
        ssij(numbers, on="low", condition="between")
    with pytest.raises(KeyColumnError, match="high"):
        ssij(numbers, schema=schema.remove(1), **BETWEEN)
    with pytest.raises(KeyTypeError, match="high"):
        ssij(numbers, schema=schema.set(1, pa.field("high", pa.string())), **BETWEEN)
    finer = pa.schema({"low": pa.timestamp("s"), "high": pa.timestamp("ms")})
    with pytest.raises(KeyTypeError, match=r"high.*timestamp\[s\]"):
        ssij(moments, schema=finer, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match=r"hybridjoin.*ssij"):
        semistream.create("hybridjoin", numbers, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match="nearest"):
        ssij(numbers, on="low", condition="nearest")


# -- options and comparators ------------------------------------------------------------------------------


OPTIONS: list[dict[str, Any]] = [
    {"replacement": "lru"},
    {"replacement": "none"},
    {"cache_share": 0.0},
    {"cache_share": 0.2},
    {"cache_share": 0.7},
    {"plan": "greedy"},
    {"utility_kept": 0.0},
    {"max_scan": 1},
    {"input_tuples": 1},
    {"input_tuples": 10_000, "buffer_tuples": 7},
    {"buffer_tuples": 10**9, "input_limit": 500},
    {"deadline": 1e-9},
    {"deadline": 3600.0},
    {"read_ahead": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("factor", [1.0, 1.5, 30.0])
def test_every_option_gives_the_same_result(folder: Path, options: dict[str, Any], factor: float) -> None:
    generator = np.random.default_rng(0)
    counts = generator.choice([1, 1, 2, 60], 300)
    master = pa.table({"id": np.repeat(np.arange(300), counts), "value": np.arange(counts.sum())})
    keys = pa.array(zipf_keys(900, 330), mask=generator.random(900) < 0.05)
    stream = pa.table({"id": keys, "n": np.arange(900), "text": ["x" * (n % 30) for n in range(900)]})
    wanted = duckdb.sql("SELECT s.*, r.value FROM stream s LEFT JOIN master r USING (id)").to_arrow_table()
    with Relation.build(master, folder / "r", "id", page_size=512, fill=0.8) as relation:
        least = Ssij.minimum_memory(relation, stream.schema, on="id", **options)
        join = ssij(relation, on="id", how="left", memory=int(least * factor), schema=stream.schema, **options)
        outcome = run(join, stream.to_batches(64), audit=True)
        assert_same_rows(outcome.table, wanted.cast(outcome.table.schema))
        assert join.budget.peak <= join.budget.total
        assert outcome.stats.appended == outcome.stats.evicted


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relation]:
    rows = 60_000
    master = pa.table({"id": np.arange(rows), **{f"c{i}": np.arange(rows) for i in range(11)}})
    with Relation.build(master, tmp_path_factory.mktemp("skewed") / "r", "id", page_size=2048, fill=0.8) as relation:
        yield relation


def seconds_of(relation: Relation, stream: list[pa.RecordBatch], **options: Any) -> float:
    """Return the virtual seconds of reading that a stream takes on the papers' disk."""
    clock = VirtualClock()
    join = ssij(simulated(relation, clock), on="id", clock=clock, **options)
    assert sum(batch.num_rows for batch in join.process(stream)) == sum(batch.num_rows for batch in stream)
    join.check()
    return clock.now()


def batches_of(keys: NDArray[np.int64], size: int = 4000) -> list[pa.RecordBatch]:
    return pa.table({"id": keys, "n": np.arange(keys.size)}).to_batches(size)


@pytest.mark.parametrize("exponent", [0.8, 1.1])
def test_utility_is_better_than_lru_and_lru_than_no_cache(skewed: Relation, exponent: float) -> None:
    stream = batches_of(zipf_keys(60_000, 60_000, exponent=exponent))
    options = {"memory": "10%", "input_tuples": 3000, "buffer_tuples": 3000}
    utility, lru, none = (
        seconds_of(skewed, stream, replacement=name, **options) for name in ("utility", "lru", "none")
    )
    assert utility < lru * 0.97
    assert utility < none * 0.9


def test_elastic_memory_is_better_than_any_fixed_split(skewed: Relation) -> None:
    # hot keys move: what is cached loses its worth, and tuples need the room
    parts = [(zipf_keys(12_000, 6000, seed=i) + i * 9000) % 60_000 for i in range(6)]
    stream = batches_of(np.concatenate(parts))
    elastic = seconds_of(skewed, stream, memory="8%")
    fixed = {share: seconds_of(skewed, stream, memory="8%", cache_share=share) for share in (0.2, 0.5, 0.7)}
    none = seconds_of(skewed, stream, memory="8%", replacement="none")
    assert elastic < none
    assert elastic <= 1.02 * min(fixed.values()), (elastic, fixed)


def test_planned_reads_cost_no_more_than_greedy_ones_and_less_than_random_ones(skewed: Relation) -> None:
    stream = batches_of(zipf_keys(30_000, 60_000, exponent=0.7))
    options = {"memory": "15%", "max_scan": 40}
    optimal, greedy = (seconds_of(skewed, stream, plan=plan, **options) for plan in ("optimal", "greedy"))
    random = seconds_of(skewed, stream, memory="15%", max_scan=1)
    assert optimal <= greedy
    assert optimal < 0.5 * random


def test_utility_that_is_kept_helps_where_batches_are_short(skewed: Relation) -> None:
    stream = batches_of(zipf_keys(60_000, 60_000))
    options = {"memory": "10%", "input_tuples": 2000, "buffer_tuples": 2000}
    kept, cleared = (seconds_of(skewed, stream, utility_kept=share, **options) for share in (0.5, 0.0))
    assert kept < cleared


def test_options_that_cannot_be(skewed: Relation) -> None:
    for options, named in (
        ({"replacement": "fifo"}, "fifo"),
        ({"plan": "lazy"}, "lazy"),
        ({"cache_share": 1.0}, "1.0"),
        ({"utility_kept": 1.0}, "1.0"),
        ({"max_scan": 0}, "max_scan"),
        ({"input_tuples": 0}, "input_tuples"),
        ({"deadline": 0.0}, "deadline"),
    ):
        with pytest.raises(ValueError, match=named):
            ssij(skewed, on="id", schema=pa.schema({"id": pa.int64()}), memory="10MB", **options)


# -- elastic memory ---------------------------------------------------------------------------------------


def test_pages_give_way_to_a_burst_and_return(skewed: Relation) -> None:
    join = ssij(skewed, on="id", memory="10%", input_limit=10**9, input_tuples=2000)
    calm, burst = batches_of(zipf_keys(40_000, 60_000), 1000), batches_of(zipf_keys(9000, 60_000, seed=5), 9000)[0]
    for batch in calm:
        join.offer(batch)
        list(join.step())
    list(join.drain())
    cached = len(join._cache)
    assert cached > 0.5 * join._pool.count
    assert join.offer(burst) == burst.num_rows, "memory was there, held by cached pages"
    assert len(join._cache) < 0.8 * cached
    join.check()
    assert sum(result.num_rows for result in join.drain()) == burst.num_rows
    for batch in calm[:10]:
        join.offer(batch)
        list(join.drain())
    assert len(join._cache) > 0.9 * cached
    assert join.budget.peak <= join.budget.total
    join.check()


def test_the_most_useful_pages_survive_a_burst(skewed: Relation) -> None:
    hot = np.repeat(np.arange(0, 60_000, 3000), 50)  # twenty pages, fifty tuples each, in every batch
    generator = np.random.default_rng(1)
    join = ssij(skewed, on="id", memory="10%", input_limit=10**9, input_tuples=5000, buffer_tuples=10**9)
    for _ in range(5):
        keys = np.concatenate([hot, generator.integers(0, 60_000, 1500)])
        join.offer(batches_of(keys, keys.size)[0])
        list(join.drain())
    pages = np.unique(skewed.locate(np.unique(hot)).pages)
    assert (join._cache.arrays.place[pages] >= 0).all()
    join.offer(batches_of(generator.integers(0, 60_000, 5000), 5000)[0])
    join.check()
    assert len(join._cache) < 0.9 * join._pool.count
    assert (join._cache.arrays.place[pages] >= 0).all(), "a page that serves fifty tuples a batch made way for a stream"


def test_tuples_offered_amid_a_turn(skewed: Relation) -> None:
    keys = zipf_keys(20_000, 60_000)
    stream = batches_of(keys, 700)
    join = ssij(skewed, on="id", memory="5%", input_tuples=600)
    found: list[int] = []
    waiting = list(stream)
    while waiting or join.pending:
        results = join.step() if waiting else join.drain()
        for result in results:
            found += result.column("n").to_pylist()
            if waiting:
                taken = join.offer(waiting[0])
                waiting[0] = waiting[0].slice(taken)
                if waiting[0].num_rows == 0:
                    waiting.pop(0)
        if waiting:
            taken = join.offer(waiting[0])
            waiting[0] = waiting[0].slice(taken)
            if waiting[0].num_rows == 0:
                waiting.pop(0)
        join.check()
    assert sorted(found) == list(range(keys.size))


class FrontSsij(FrontStage):
    """The front stage before SSIJ, for this test."""

    id = "front+ssij (test)"
    title = "front stage before SSIJ"
    behind = "ssij"


def test_an_observer_sees_the_pairs_of_a_key_together(folder: Path) -> None:
    counts = np.random.default_rng(3).choice([1, 2, 3], 4000)
    master = pa.table({"id": np.repeat(np.arange(4000), counts), "value": np.arange(counts.sum())})
    stream = pa.table({"id": zipf_keys(30_000, 4000), "n": np.arange(30_000)})
    wanted = duckdb.sql("SELECT s.*, r.value FROM stream s LEFT JOIN master r USING (id)").to_arrow_table()
    with Relation.build(master, folder / "r", "id", page_size=1024) as relation:
        join = FrontSsij(relation, on="id", how="left", memory="200KB", input_tuples=300, buffer_tuples=1200)
        outcome = run(join, stream.to_batches(500), audit=True)
        assert_same_rows(outcome.table, wanted.cast(outcome.table.schema))
        assert outcome.stats.hit_ratio > 0.3


# -- deadlines --------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("jitter", [0.0, 0.9])
@pytest.mark.parametrize("share", [0.25, 0.85])
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


# -- updates of R -----------------------------------------------------------------------------------------


ROWS_A_KEY = 120


def versioned(version: int, keys: NDArray[np.int64]) -> pa.Table:
    """Return many rows for each key, over several pages, all of which say which version they are of."""
    ids = np.repeat(keys, ROWS_A_KEY)
    return pa.table(
        {"id": ids, "version": np.full(ids.size, version), "row": np.tile(np.arange(ROWS_A_KEY), keys.size)}
    )


def assert_whole(found: pa.Table, tuples: int) -> NDArray[np.int64]:
    """Assert that each stream tuple met all rows of one version; return the version of each."""
    per_tuple = found.group_by("n").aggregate([("version", "min"), ("version", "max"), ("row", "count")]).sort_by("n")
    assert per_tuple["n"].to_pylist() == list(range(tuples))
    assert per_tuple["version_min"].equals(per_tuple["version_max"]), "a tuple has seen two versions of R"
    assert set(per_tuple["row_count"].to_pylist()) == {ROWS_A_KEY}
    versions: NDArray[np.int64] = per_tuple["version_min"].to_numpy()
    return versions


@pytest.mark.parametrize("condition", ["equal", "between"])
def test_each_tuple_sees_r_wholly_before_or_after_updates_from_another_thread(folder: Path, condition: str) -> None:
    keys = np.arange(40)
    tuples = 3000
    generator = np.random.default_rng(0)
    asked = generator.integers(0, 40, tuples)
    stream = pa.table({"low": asked, "high": asked, "n": np.arange(tuples)})
    options = BETWEEN if condition == "between" else {"on": "low"}
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024, fill=0.8) as relation:
        join = ssij(relation, memory="1MB", input_tuples=50, buffer_tuples=120, **options)
        done: list[Future[Change]] = []
        stop = threading.Event()

        def updates() -> None:
            while not stop.is_set() and len(done) < 200:
                done.append(join.update(versioned(len(done) + 1, keys)))
                done[-1].result(timeout=60)  # the next when this one is in

        worker = threading.Thread(target=updates)
        worker.start()
        results = []
        try:
            for batch in stream.to_batches(30):
                at = 0
                while at < batch.num_rows:
                    at += join.offer(batch.slice(at))
                    results += join.step()
        finally:
            stop.set()
        while worker.is_alive():
            results += join.drain()
        worker.join()
        results += join.drain()
        versions = assert_whole(pa.Table.from_batches(results), tuples)
        assert all(future.exception() is None for future in done)
        assert len(done) > 3
        assert np.unique(versions).size > 3, "updates did not come amid the stream"
        assert join.budget.peak <= join.budget.total
        join.check()


def test_tuples_that_wait_see_r_as_it_was_and_later_ones_as_it_is(folder: Path) -> None:
    keys = np.arange(40)
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="1MB", input_tuples=10, buffer_tuples=1000)
        join.offer(pa.record_batch({"id": np.arange(10), "n": np.arange(10)}))
        results = list(join.step())  # looked up, and waiting
        assert join.join_phases == 0
        change = join.update(versioned(1, keys), deletes=pa.array([99]))
        join.offer(pa.record_batch({"id": np.arange(5), "n": np.arange(10, 15)}))
        assert not change.done()
        results += join.drain()
        assert change.result().version == relation.version == 2
        versions = assert_whole(pa.Table.from_batches(results), 15)
        assert versions.tolist() == [0] * 10 + [1] * 5


def test_an_update_of_the_relation_itself_is_seen_too(folder: Path) -> None:
    keys = np.arange(40)
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="2MB", input_tuples=10, buffer_tuples=1000)
        results = []
        for version in range(1, 6):
            begin = 20 * (version - 1)
            join.offer(pa.record_batch({"id": np.arange(20), "n": np.arange(begin, begin + 20)}))
            results += join.step()
            relation.apply(versioned(version, keys))
            assert join.pending > 0
        results += join.drain()
        versions = assert_whole(pa.Table.from_batches(results), 100)
        # ten tuples were looked up in each round; those that were not have seen the last update
        assert np.bincount(versions).tolist() == [10, 10, 10, 10, 10, 50]
        join.check()
        assert join.budget.peak <= join.budget.total


def test_cached_pages_that_changed_are_not_served(folder: Path) -> None:
    master = pa.table({"id": np.arange(2000), "value": np.zeros(2000, np.int64)})
    stream = pa.record_batch({"id": np.arange(2000)})
    with Relation.build(master, folder / "r", "id", page_size=1024, fill=0.8) as relation:
        join = ssij(relation, on="id", how="left", memory="1MB")
        list(join.process([stream]))
        assert len(join._cache) == relation.page_count, "all of R is cached"
        pages = relation.page_count
        update = join.update(pa.table({"id": [5, 700, 700, 5000], "value": [1, 2, 3, 4]}), deletes=pa.array([6, 1999]))
        list(join.drain())
        update.result()
        assert relation.page_count == pages, "the pages had room"
        before = relation.counters.pages
        found = pa.Table.from_batches(join.process([stream, pa.record_batch({"id": [5000]})]))
        values = dict.fromkeys(range(2000), 0) | {5: 1, 6: None, 1999: None, 5000: 4}
        got = [(row["id"], row["value"]) for row in found.to_pylist()]
        del values[700]
        assert sorted(got, key=repr) == sorted([*values.items(), (700, 2), (700, 3)], key=repr)
        assert relation.counters.pages == before, "unchanged pages stayed cached, changed ones are in memory"


def test_updates_that_cannot_be_installed_are_told_and_the_stream_goes_on(folder: Path) -> None:
    master = pa.table({"id": np.arange(2000), "value": np.zeros(2000, np.int64)})
    with Relation.build(master, folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory=Ssij.minimum_memory(relation, pa.schema({"id": pa.int64()}), on="id"))
        wrong = join.update(pa.table({"id": [1]}))
        large = join.update(pa.table({"id": np.arange(2000), "value": np.ones(2000, np.int64)}))
        results = list(join.process([pa.record_batch({"id": np.arange(300)})]))
        assert sum(result.num_rows for result in results) == 300
        assert isinstance(wrong.exception(), SemistreamError)
        assert isinstance(large.exception(), BudgetExceededError)
        assert relation.version == 1
        assert {value for result in results for value in result["value"].to_pylist()} == {0}
        join.check()


def test_an_update_amid_a_turn_is_refused(folder: Path) -> None:
    with Relation.build(versioned(0, np.arange(40)), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="1MB", input_tuples=10)
        join.offer(pa.record_batch({"id": np.arange(40)}))
        turn = join.drain()
        next(turn)
        with pytest.raises(SemistreamError, match="amid a turn"):
            relation.apply(versioned(1, np.arange(40)))
        list(turn)
        relation.apply(versioned(1, np.arange(40)))
