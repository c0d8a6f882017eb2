"""SSIJ: elastic memory, and the comparators of its paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from semistream.joins.families.front_stage import FrontStage
from semistream.joins.ssij.ssij import Ssij
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, run
from ssij_cases import batches_of, seconds_of, ssij, zipf_keys

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


@pytest.mark.sampled(4)
@pytest.mark.slow
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


@pytest.mark.parametrize("exponent", [0.8, 1.1])
@pytest.mark.slow
def test_utility_is_better_than_lru_and_lru_than_no_cache(skewed: Relation, exponent: float) -> None:
    stream = batches_of(zipf_keys(60_000, 60_000, exponent=exponent))
    options = {"memory": "10%", "input_tuples": 3000, "buffer_tuples": 3000}
    utility, lru, none = (
        seconds_of(skewed, stream, replacement=name, **options) for name in ("utility", "lru", "none")
    )
    assert utility < lru * 0.97
    assert utility < none * 0.9


@pytest.mark.slow
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


def test_pages_give_way_to_a_burst_and_return(skewed: Relation) -> None:
    join = ssij(skewed, on="id", memory="10%", input_limit=10**9, input_tuples=2000)
    calm, burst = batches_of(zipf_keys(40_000, 60_000), 1000), batches_of(zipf_keys(9000, 60_000, seed=5), 9000)[0]
    for batch in calm:
        join.offer(batch)
        list(join.step())
    list(join.drain())
    cached = join.cached_pages
    assert cached > 0.5 * join.frames
    assert join.offer(burst) == burst.num_rows, "memory was there, held by cached pages"
    assert join.cached_pages < 0.8 * cached
    join.check()
    assert sum(result.num_rows for result in join.drain()) == burst.num_rows
    for batch in calm[:10]:
        join.offer(batch)
        list(join.drain())
    assert join.cached_pages > 0.9 * cached
    assert join.budget.peak <= join.budget.total
    join.check()


@pytest.mark.parametrize("utility_kept", [0.5, 0.0])
def test_the_most_useful_pages_survive_a_burst(skewed: Relation, utility_kept: float) -> None:
    """Also where all utility is cleared after a phase: what comes during one makes pages go by what it counted."""
    hot = np.repeat(np.arange(0, 60_000, 3000), 50)  # twenty pages, fifty tuples each, in every batch
    generator = np.random.default_rng(1)
    join = ssij(
        skewed, on="id", memory="10%", input_limit=10**9, input_tuples=5000, buffer_tuples=10**9,
        utility_kept=utility_kept,
    )  # fmt: skip
    for _ in range(5):
        keys = np.concatenate([hot, generator.integers(0, 60_000, 1500)])
        join.offer(batches_of(keys, keys.size)[0])
        list(join.drain())
    pages = np.unique(skewed.locate(np.unique(hot)).pages)
    assert join.caches(pages).all()
    join.offer(batches_of(generator.integers(0, 60_000, 5000), 5000)[0])
    join.check()
    assert join.cached_pages < 0.9 * join.frames
    assert join.caches(pages).all(), "a page that serves fifty tuples a batch made way for a stream"


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
    behind = Ssij


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
