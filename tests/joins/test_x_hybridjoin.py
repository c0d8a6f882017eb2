"""X-HYBRIDJOIN: what is pinned, what it saves, and that it never shows in the result."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import semistream
from semistream.joins.interface.join import Join
from semistream.joins.x_hybridjoin import XHybridJoin
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, in_batches, in_turns, run

Ints = NDArray[np.int64]
KEYS = 20_000
STREAM = pa.schema({"id": pa.int64(), "position": pa.int64()})
ZIPF = 1 / np.arange(1, KEYS + 1)
ZIPF /= ZIPF.sum()


@pytest.fixture(scope="module")
def ranked() -> Ints:
    """The keys, the most frequent first."""
    return np.random.default_rng(0).permutation(KEYS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ranked: Ints) -> Path:
    """One relation by key, and one stored by access frequency."""
    path = tmp_path_factory.mktemp("x")
    table = pa.table({"id": ranked, "v": ranked * 10})
    Relation.build(table, path / "by key", key="id", page_size=512)
    Relation.build(table, path / "by frequency", key="id", page_size=512, clustered=False)
    Relation.build(table, path / "sharded", key="id", page_size=512, clustered=False, shards=3)
    return path


def zipf(ranked: Ints, count: int, seed: int = 1) -> Ints:
    return ranked[np.random.default_rng(seed).choice(KEYS, count, p=ZIPF)]


def stream(keys: Ints) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(np.arange(len(keys)))], schema=STREAM)


def made(relation: Relation, **options: object) -> XHybridJoin:
    join = semistream.create(
        "x_hybridjoin", relation, on="id", schema=STREAM, **{"how": "inner", "memory": 200_000, **options}
    )
    assert isinstance(join, XHybridJoin)
    return join


def feed(join: Join, keys: Ints) -> int:
    """Offer all keys, stepping whenever the join is full, and leave what waits waiting; return the rows that came."""
    return sum(result.num_rows for result in in_turns(join, stream(keys)))


def rate(relation: Relation, pages: Ints, ranked: Ints) -> float:
    """Return the share of a Zipf stream that some pages serve."""
    page = relation.locate(ranked).pages
    return float(ZIPF[np.isin(page, pages)].sum())


def test_pages_of_frequent_keys_are_not_read_again(folder: Path, ranked: Ints) -> None:
    keys = zipf(ranked, 30_000)
    pages = {}
    for algorithm, options in (("hybridjoin", {}), ("x_hybridjoin", {})):
        join = semistream.create(
            algorithm, Relation.open(folder / "by key"), on="id", memory=200_000, schema=STREAM, in_flight=8,
            partition_pages=1, **options,
        )  # fmt: skip
        assert feed(join, keys) + sum(batch.num_rows for batch in join.drain()) == keys.size
        pages[algorithm] = join.stats.pages_read
    assert pages["x_hybridjoin"] < 0.85 * pages["hybridjoin"]


@pytest.mark.long
@pytest.mark.slow
def test_stored_by_frequency_as_in_the_paper(folder: Path, ranked: Ints) -> None:
    relation = Relation.open(folder / "by frequency")
    keys = zipf(ranked, 60_000)
    join = made(relation, by_frequency=True, pinned_pages=50, partition_pages=1, in_flight=1)
    # Algorithm 1, line 1: the first pages are loaded before the stream comes
    assert join.stats.pages_read == 50
    assert join.pinned.pages.tolist() == list(range(50))
    assert feed(join, keys) + sum(batch.num_rows for batch in join.drain()) == keys.size
    assert join.pinned.pages.tolist() == list(range(50))
    expected = rate(relation, np.arange(50), ranked)
    assert join.stats.cache_hits == pytest.approx(expected * keys.size, rel=0.02)
    plain = semistream.create(
        "hybridjoin", Relation.open(folder / "by frequency"), on="id", how="inner", memory=200_000, schema=STREAM,
        partition_pages=1, in_flight=1,
    )  # fmt: skip
    feed(plain, keys)
    assert join.stats.pages_read < 0.75 * plain.stats.pages_read


def test_the_first_pages_of_every_shard(folder: Path) -> None:
    relation = Relation.open(folder / "sharded")
    join = made(relation, by_frequency=True, pinned_pages=31)
    depths = [join.pinned.pages[join.pinned.pages >= base].min() - base for base in relation.shard_bases[:-1]]
    assert depths == [0, 0, 0]
    held = [np.count_nonzero((join.pinned.pages >= low) & (join.pinned.pages < high))
            for low, high in zip(relation.shard_bases, relation.shard_bases[1:], strict=False)]  # fmt: skip
    assert sorted(held) == [10, 10, 11]


@pytest.mark.parametrize("order", ["by key", "by frequency"])
def test_measured_frequency_comes_near_the_true_one(folder: Path, ranked: Ints, order: str) -> None:
    relation = Relation.open(folder / order)
    join = made(relation, pinned_pages=60)
    feed(join, zipf(ranked, 60_000, seed=2))
    page = relation.locate(ranked).pages
    true = np.argsort(-np.bincount(page, ZIPF, minlength=relation.page_count))[:60]
    best = rate(relation, true, ranked)
    assert rate(relation, join.pinned.pages, ranked) > 0.93 * best
    before = join.stats
    feed(join, zipf(ranked, 20_000, seed=3))
    hits = join.stats.cache_hits - before.cache_hits
    assert hits > 0.9 * best * 20_000


@pytest.mark.slow
def test_pinning_follows_a_hot_set_that_moves(folder: Path, ranked: Ints) -> None:
    relation = Relation.open(folder / "by key")
    join = made(relation, pinned_pages=60)
    feed(join, zipf(ranked, 60_000, seed=4))
    steady = join.stats.cache_hits

    def hit_ratio(keys: Ints) -> float:
        before = join.stats.cache_hits
        feed(join, keys)
        return (join.stats.cache_hits - before) / keys.size

    usual = hit_ratio(zipf(ranked, 10_000, seed=5))
    assert usual > 0.4 < steady / 60_000
    moved = np.roll(ranked, KEYS // 2)
    fallen = hit_ratio(zipf(moved, 1_000, seed=6))
    assert fallen < 0.75 * usual
    feed(join, zipf(moved, 40_000, seed=7))
    assert hit_ratio(zipf(moved, 10_000, seed=8)) > 0.95 * usual
    page = relation.locate(moved[:20]).pages
    assert np.isin(page, join.pinned.pages).all()
    join.check()


@pytest.mark.slow
def test_without_pinned_pages_it_is_hybridjoin(folder: Path, ranked: Ints) -> None:
    keys = zipf(ranked, 5_000)
    common = {"in_flight": 1, "partition_pages": 1}
    join = made(Relation.open(folder / "by key"), pinned_pages=0, memory=60_000, **common)
    feed(join, keys)
    assert join.stats.cache_hits == 0
    hybrid = semistream.create(
        "hybridjoin", Relation.open(folder / "by key"), on="id", memory=60_000, schema=STREAM, **common
    )
    feed(hybrid, keys)
    assert join.stats.pages_read == pytest.approx(hybrid.stats.pages_read, rel=0.05)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("repeats", [(1,), (1, 1, 2, 1, 50, 5)])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.slow
def test_exact_against_duckdb(
    tmp_path: Path, how: str, repeats: tuple[int, ...], clustered: bool, by_frequency: bool
) -> None:
    rng = np.random.default_rng(9)
    keys = np.repeat(np.arange(400) * 2, np.resize(repeats, 400))
    keys = keys if clustered else rng.permutation(keys)
    master = pa.table({"id": keys, "v": np.arange(keys.size)})
    relation = Relation.build(master, tmp_path / "r", key="id", page_size=512, clustered=clustered)
    weights = 1 / np.arange(1, 801)
    batch = stream(rng.permutation(800)[rng.choice(800, 700, p=weights / weights.sum())] - 1)
    tuples = pa.Table.from_batches([batch])
    wanted = duckdb.sql(f"SELECT s.*, m.v FROM tuples s {how} JOIN master m ON s.id = m.id").to_arrow_table()
    least = XHybridJoin.minimum_memory(relation, STREAM, on="id", by_frequency=by_frequency)
    for factor in (1, 1.3, 3):
        join = made(relation, how=how, by_frequency=by_frequency, memory=int(least * factor), repin_every=40)
        outcome = run(join, in_batches(tuples, 130), audit=factor == 3)
        assert_same_rows(outcome.table, wanted.cast(join.output_schema), f"with {factor} times the least memory")
        assert join.budget.peak <= join.budget.total
        assert join.pinned.pinned > 0
        # where the frequent pages are those of keys with rows in many, they save reads but serve no tuple alone
        assert factor < 3 or outcome.stats.cache_hits > 0 or not (clustered or by_frequency)


def test_counters_that_pages_share_cost_hits_and_nothing_else(folder: Path, ranked: Ints) -> None:
    relation = Relation.open(folder / "by key")
    join = made(relation, memory=40_000)
    assert join.pinned.counters < relation.page_count
    keys = zipf(ranked, 10_000)
    assert feed(join, keys) + sum(batch.num_rows for batch in join.drain()) == keys.size
    join.check()


def test_a_changed_page_is_not_served_stale(folder: Path, ranked: Ints) -> None:
    relation = Relation.open(folder / "by key")
    join = made(relation, pinned_pages=100, memory=300_000)  # what the update holds in memory is counted
    feed(join, zipf(ranked, 20_000))
    list(join.drain())
    hot = ranked[:50]
    assert np.isin(relation.locate(hot).pages, join.pinned.pages).mean() > 0.9
    relation.apply(pa.table({"id": np.sort(hot[:40]), "v": -np.sort(hot[:40])}), deletes=pa.array(np.sort(hot[40:])))
    results = pa.Table.from_batches(join.process([stream(np.tile(hot, 3))]), join.output_schema)
    assert sorted(results["id"].to_pylist()) == sorted(np.repeat(hot[:40], 3))
    assert results["v"].to_numpy().tolist() == (-results["id"].to_numpy()).tolist()
    join.check()


def test_the_front_stage_goes_before_it_too(folder: Path, ranked: Ints) -> None:
    from semistream.joins.families.front_stage import FrontStage
    from semistream.joins.x_hybridjoin import XHybridJoin

    class Front(FrontStage):
        id, title, behind, share = "front+x_hybridjoin", "", XHybridJoin, 0.3

    keys = zipf(ranked, 30_000)
    join = Front(Relation.open(folder / "by key"), on="id", memory=300_000, schema=STREAM)
    tuples = pa.Table.from_batches([stream(keys)])
    results = [key for batch in join.process(in_batches(tuples, 2000)) for key in batch["id"].to_pylist()]
    assert sorted(results) == sorted(keys.tolist())
    assert join.stats.cache_hits > 10_000
    join.check()


def test_tuples_offered_within_a_turn(tmp_path: Path) -> None:
    """A tuple that came in after the first page of its key was probed would miss the rows of that page."""
    keys = np.repeat(np.arange(100), 50)
    relation = Relation.build(
        pa.table({"id": keys, "v": np.arange(keys.size)}), tmp_path / "r", key="id", page_size=512
    )
    for algorithm in ("hybridjoin", "x_hybridjoin", "partitioned_join"):
        join = semistream.create(algorithm, relation, on="id", how="inner", memory=60_000, schema=STREAM)
        batch = stream(np.random.default_rng(10).integers(0, 100, 4000))
        results = [*in_turns(join, batch, 40, amid=True), *join.drain()]
        assert sum(result.num_rows for result in results) == 50 * 4000, algorithm
        join.check()


@pytest.mark.parametrize("name", ["by frequency", "sharded"])
def test_as_published_every_tuple_waits_and_every_pinned_row_is_probed(folder: Path, ranked: Ints, name: str) -> None:
    keys = zipf(ranked, 20_000)
    results, joins = [], []
    for scan in (True, False):
        options = {"by_frequency": True, "scan_pinned": scan, "pinned_pages": 100, "in_flight": 8, "memory": 300_000}
        join = made(Relation.open(folder / name), **options)
        results.append(pa.Table.from_batches(join.process([stream(keys)])))
        joins.append(join)
        join.check()
    assert_same_rows(*results)
    paper, ours = (join.stats for join in joins)
    assert paper.appended == paper.evicted == keys.size > ours.appended
    assert abs(paper.cache_hits - ours.cache_hits) < 0.05 * keys.size
    assert paper.cache_hits > 0.3 * keys.size
    assert paper.probes > paper.steps * joins[0].pinned.row_count > 4 * ours.probes
    with pytest.raises(ValueError, match="scan_pinned=True works only with by_frequency=True"):
        made(Relation.open(folder / "by key"), scan_pinned=True)


@pytest.mark.parametrize(
    "options", [{"pinned_pages": -1}, {"repin_every": 0}, {"partition_pages": 0}, {"in_flight": 0}, {"seek_pages": -2}]
)
def test_nonsense_is_refused(folder: Path, options: dict[str, int]) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        made(Relation.open(folder / "by key"), **options)
