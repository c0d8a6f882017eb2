"""The contract of a join behind another stage: everything that such a stage needs is public, and enough."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import BudgetTooSmallError, UnsupportedJoinError
from semistream.joins import algorithms, find
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.join import Join
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec

ROWS = 3000
STREAM = pa.schema({"id": pa.int64(), "note": pa.string()})
ROW_BYTES = RowCodec(STREAM).stride + 16.0
BEHIND = [name for name in algorithms() if find(name).bounded and find(name).stands_behind]


@pytest.fixture
def relation(tmp_path) -> Relation:
    master = pa.table({"id": range(ROWS), "v": [key * 3 for key in range(ROWS)]})
    return Relation.build(master, tmp_path / "r", "id", page_size=1024)


def tuples(keys: np.ndarray, note: str = "n") -> Tuples:
    return Tuples(keys, pa.record_batch([keys, pa.array([note] * keys.size)], schema=STREAM))


def made(algorithm: str, relation: Relation) -> tuple[Join, int]:
    join = find(algorithm)(relation, on="id", how="left", memory=None)
    return join, join.least_memory(RowCodec(STREAM), ROW_BYTES)


@pytest.mark.parametrize("algorithm", BEHIND)
def test_a_stage_before_needs_nothing_but_the_contract(algorithm: str, relation: Relation) -> None:
    join, least = made(algorithm, relation)
    assert least == find(algorithm).minimum_memory(relation, STREAM, on="id")
    seen: dict[int, int] = {}

    def observer(keys: np.ndarray, data: np.ndarray, starts: np.ndarray, flags: np.ndarray) -> None:
        assert keys.size == starts.size == flags.size
        for key in keys.tolist():
            seen[key] = seen.get(key, 0) + 1

    memory = least + 40_000
    join.stand_behind(STREAM, memory=memory, row_bytes=ROW_BYTES, observer=observer)
    keys = np.random.default_rng(3).integers(0, ROWS + 200, 2000)
    results, part = [], tuples(keys)
    while len(part.keys):
        taken = join.hand(part)
        assert taken or join.arrived
        part = Tuples(part.keys[taken:], part.batch.slice(taken))
        results.extend(join.step())
    join.closing = True
    while join.pending:
        before = join.work()
        results.extend(join.step())
        assert join.work() != before
    join.check()
    found = pa.Table.from_batches(results).to_pydict()
    assert sorted(found["id"]) == sorted(keys.tolist())
    assert all(value == (key * 3 if key < ROWS else None) for key, value in zip(found["id"], found["v"], strict=True))
    assert seen == {key: int((keys == key).sum()) for key in set(keys[keys < ROWS].tolist())}
    assert join.stats.rows_in == join.stats.rows_done == keys.size
    assert join.budget.peak <= join.budget.total == memory


@pytest.mark.parametrize("algorithm", BEHIND)
def test_a_row_too_long_to_be_handed_over_is_looked_up(algorithm: str, relation: Relation) -> None:
    join, least = made(algorithm, relation)
    join.stand_behind(STREAM, memory=least + 40_000, row_bytes=ROW_BYTES, observer=lambda *_: None)
    giant = tuples(np.array([7]), "x" * 60_000)
    assert join.hand(giant) == 0
    assert join.arrived == 0
    assert pa.Table.from_batches(join.look_up(giant))["v"].to_pylist() == [21]


@pytest.mark.parametrize("algorithm", BEHIND)
def test_it_is_told_of_updates_by_the_stage_before(algorithm: str, relation: Relation) -> None:
    join, least = made(algorithm, relation)
    join.stand_behind(STREAM, memory=least + 40_000, row_bytes=ROW_BYTES, observer=lambda *_: None)
    relation.apply(pa.table({"id": [5], "v": [-5]}))
    assert join.budget.parts()["updates of R"] == 0, "it listened to R itself"


@pytest.mark.parametrize("algorithm", BEHIND)
def test_too_little_memory_is_refused(algorithm: str, relation: Relation) -> None:
    join, least = made(algorithm, relation)
    with pytest.raises(BudgetTooSmallError, match=f"{least:,}"):
        join.stand_behind(STREAM, memory=least - 1, row_bytes=ROW_BYTES, observer=lambda *_: None)


@pytest.mark.parametrize("algorithm", ["cachejoin", "adaptivejoin"])
def test_a_join_that_cannot_stand_behind_says_so(algorithm: str, relation: Relation) -> None:
    join, least = made(algorithm, relation)
    with pytest.raises(UnsupportedJoinError, match=f"{algorithm} cannot stand behind another stage"):
        join.stand_behind(STREAM, memory=2 * least, row_bytes=ROW_BYTES, observer=lambda *_: None)


COMMON = ("stream buffer", "matches", "results", "look-up page")


@pytest.mark.parametrize("algorithm", ["cachejoin", "cmeshjoin", "front+inlj", "front+x_hybridjoin"])
def test_what_both_stages_have_is_counted_once(algorithm: str, relation: Relation) -> None:
    front = find(algorithm)(relation, on="id", memory=400_000, schema=STREAM)
    assert isinstance(front, FrontStage)
    mine, behind = front.view(), front.inner.view()
    assert all(mine.parts[name] for name in COMMON)
    assert not any(behind.parts.get(name) for name in COMMON), behind.parts
    assert behind.inbox == mine.inbox == mine.parts["stream buffer"]
    assert front.budget.used <= 400_000


@pytest.mark.parametrize("algorithm", ["p_cachejoin", "op_cachejoin"])
def test_phases_in_parallel_share_the_room_between_them(algorithm: str, relation: Relation) -> None:
    front = find(algorithm)(relation, on="id", memory=400_000, schema=STREAM)
    assert isinstance(front, FrontStage)
    behind = front.inner.view()
    assert behind.inbox == front.view().parts["intermediate buffer"]
    assert not behind.parts.get("stream buffer")
    assert not behind.parts.get("look-up page")
    assert behind.parts["matches"]  # found while the other phase finds its own


def test_ssij_behind_a_front_stage_has_its_own_pairs_and_results(relation: Relation) -> None:
    front = find("front+ssij")(relation, on="id", memory=400_000, schema=STREAM)
    assert isinstance(front, FrontStage)
    behind = front.inner.view()
    assert behind.inbox == front.view().inbox
    assert not behind.parts.get("stream buffer")
    assert behind.parts["matches"]
    assert behind.parts["results"]


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", ["cachejoin", "cmeshjoin", "front+inlj", "front+x_hybridjoin", "front+ssij"])
@pytest.mark.slow
def test_a_stream_that_goes_on_never_stops_where_both_share_one_buffer(algorithm: str, relation: Relation) -> None:
    least = find(algorithm).minimum_memory(relation, STREAM, on="id")
    front = find(algorithm)(relation, on="id", memory=least + 2000, schema=STREAM)
    keys = np.random.default_rng(4).integers(0, ROWS, 3000)
    out = 0
    for begin in range(0, keys.size, 1000):
        part = tuples(keys[begin : begin + 1000]).batch
        while part.num_rows:
            part = part.slice(front.offer(part))
            out += sum(batch.num_rows for batch in front.step())
            front.check()
    assert out + sum(batch.num_rows for batch in front.drain()) == keys.size


@pytest.mark.parametrize("algorithm", ["cachejoin", "cmeshjoin", "front+x_hybridjoin", "front+ssij"])
@pytest.mark.slow
def test_a_long_row_waits_for_the_room_that_others_have_behind(algorithm: str, relation: Relation) -> None:
    least = find(algorithm).minimum_memory(relation, STREAM, on="id")
    front = find(algorithm)(relation, on="id", memory=2 * least, schema=STREAM)
    limit, keys = front.view().inbox, np.random.default_rng(5).integers(0, ROWS, 3000)
    out = 0
    for begin in range(0, keys.size, 100):
        for part in (tuples(keys[begin : begin + 100]), tuples(np.array([begin]), "x" * (limit - 100))):
            out += sum(batch.num_rows for batch in front.feed(part.batch))
            front.check()
    assert out + sum(batch.num_rows for batch in front.drain()) == keys.size + keys.size // 100
