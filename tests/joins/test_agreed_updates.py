"""Updates that all joins of a relation agree on, or that leave everything as it was."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import BrokenJoinError, StalledJoinError, UpdateRefusedError, UpdateTooLargeError
from semistream.joins import algorithms, find
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.join import Join
from semistream.relation.changes.invariants import check_relation
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation

pytestmark = pytest.mark.slow

Model = dict[int, tuple[int, ...]]
SCHEMA = pa.schema({"id": pa.int64(), "n": pa.int64()})
BOUNDED = [name for name in algorithms() if find(name).bounded]


def table(model: Model) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([key for key, values in model.items() for _ in values], pa.int64()),
            "v": pa.array([value for values in model.values() for value in values], pa.int64()),
        }
    )


def batch(keys: Iterable[int], begin: int = 0) -> pa.RecordBatch:
    keys = list(keys)
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "n": np.arange(begin, begin + len(keys))})


def relation_of(path: Path, keys: int = 2000, **options: Any) -> Relation:
    return Relation.build(table({key: (key,) for key in range(keys)}), path, "id", **({"page_size": 512} | options))


class Stubborn:
    """A listener that refuses everything."""

    def prepare_update(self, patch: Patch) -> Any:
        raise UpdateRefusedError("no")


class Client:
    """A join, and what each tuple that was given to it may be answered with."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.next = 0
        self.asked: dict[int, tuple[int, set[tuple[int, ...]]]] = {}
        self.got: dict[int, list[int]] = {}

    def offer(self, keys: list[int], model: Model) -> None:
        for place, key in enumerate(keys):
            self.asked[self.next + place] = (key, {model.get(key, ())})
        self.take(self.join.feed(batch(keys, self.next)))
        self.next += len(keys)

    def take(self, results: Iterable[pa.RecordBatch]) -> None:
        for result in results:
            for n, value in zip(result["n"].to_pylist(), result["v"].to_pylist(), strict=True):
                rows = self.got.setdefault(n, [])
                if value is not None:
                    rows.append(value)

    def updated(self, model: Model) -> None:
        for key, allowed in self.asked.values():
            allowed.add(model.get(key, ()))

    def finish(self) -> None:
        """Drain; every tuple has seen R wholly as it was at one moment, and left once."""
        self.take(self.join.drain())
        self.join.check()
        assert self.join.budget.peak <= self.join.budget.total
        assert self.join.pending == 0
        for n, (key, allowed) in self.asked.items():
            assert n in self.got, f"{self.join.id} lost tuple {n} of key {key}"
            assert tuple(sorted(self.got[n])) in allowed, f"{self.join.id}: tuple {n} of key {key}: {self.got[n]}"
        assert self.got.keys() == self.asked.keys()
        self.asked.clear()
        self.got.clear()


def _held(join: Join) -> dict[str, int]:
    """What a refused update must leave as it was: all parts, or of a join whose memory moves those that do not."""
    moving = ("stream buffer", "arena") if join.id == "adaptivejoin" else ()
    return {name: size for name, size in join.budget.parts().items() if name not in moving}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 5])
def test_all_joins_on_one_relation_against_a_dictionary(tmp_path: Path, shards: int) -> None:
    rng = random.Random(shards)

    def rows(key: int, step: int) -> tuple[int, ...]:
        return tuple(key * 1000 + step + i for i in range(rng.choice([1, 1, 2, 60])))

    model: Model = {key: rows(key, 0) for key in range(80)}
    relation = Relation.build(table(model), tmp_path / "r", "id", page_size=512, shards=shards, fill=0.8)
    clients = [
        Client(semistream.create(name, relation, on="id", how="left", memory=rng.choice([400_000, 700_000])))
        for name in algorithms()
    ]
    outcomes: dict[str, int] = {}
    stubborn = Stubborn()
    for step in range(1, 15):
        for client in clients:
            client.offer([rng.randrange(85) for _ in range(rng.choice([3, 40, 200]))], model)
            if rng.random() < 0.5:
                client.finish()
        upserts = {key: rows(key, step) for key in rng.sample(range(85), rng.choice([1, 8, 25]))}
        deletes = rng.sample(range(85), rng.choice([0, 3, 10]))
        if too_large := rng.random() < 0.15:
            upserts |= {key: tuple(range(40)) for key in range(1000, 2500)}
        if rng.random() < 0.3:
            relation.subscribe(stubborn)
        elif rng.random() < 0.7:
            for client in clients:
                client.finish()
        before = relation.revision, relation.overlay, [_held(client.join) for client in clients]
        try:
            relation.apply(table(upserts), deletes=pa.array(deletes, pa.int64()))
        except UpdateRefusedError as refusal:
            outcome = type(refusal).__name__
            assert before == (relation.revision, relation.overlay, [_held(client.join) for client in clients])
        else:
            assert not too_large
            outcome = "applied"
            for key in deletes:
                model.pop(key, None)
            model |= upserts
            for client in clients:
                client.updated(model)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        relation.unsubscribe(stubborn)
        check_relation(relation)
        for client in clients:
            client.join.check()
    for client in clients:
        client.finish()
    assert outcomes.get("applied", 0) > 2, outcomes
    assert outcomes.get("UpdateRefusedError", 0) > 0, outcomes


@pytest.mark.parametrize("algorithm", ["meshjoin", "r_meshjoin", "cmeshjoin"])
def test_an_update_that_is_refused_amid_a_pass_over_r(tmp_path: Path, algorithm: str) -> None:
    relation = relation_of(tmp_path / "r")
    options = {"disk_pages": 8} if algorithm == "r_meshjoin" else {}
    join = semistream.create(algorithm, relation, on="id", how="left", memory=200_000, **options)
    client, refused = Client(join), 0
    model: Model = {key: (key,) for key in range(2000)}
    for begin in range(0, 2000, 100):
        client.offer(list(range(begin, begin + 100)), model)
        client.take(join.step())
        try:
            relation.apply(table({5000 + begin: (0,)}))
        except UpdateRefusedError:
            refused += 1
    client.finish()
    assert refused > 5


@pytest.mark.parametrize("algorithm", algorithms())
def test_what_updates_hold_in_memory_is_counted_once(tmp_path: Path, algorithm: str) -> None:
    relation = relation_of(tmp_path / "r", 5000, page_size=1024)
    join = semistream.create(algorithm, relation, on="id", how="inner", memory=1_000_000, schema=SCHEMA)
    counted = join.inner if isinstance(join, FrontStage) else join
    index = relation.index_bytes
    for step in range(4):
        list(join.process([batch(range(0, 5000, 7))]))
        relation.apply(table(dict.fromkeys(range(step * 50, step * 50 + 300), (step, step))))
        held = relation.overlay.nbytes + relation.index_bytes - index
        assert held > 0
        assert counted.budget.parts()["updates of R"] == held
        if join is not counted:
            assert join.budget.parts()["updates of R"] == 0
            assert join.budget.parts()["join behind"] == counted.budget.total
        join.check()
        results = list(join.process([batch(range(0, 5000, 7))]))
        assert sum(result.num_rows for result in results) == 715 + sum(key % 7 == 0 for key in range(step * 50 + 300))
    # one that begins with an R that was updated counts it too
    later = semistream.create(algorithm, relation, on="id", how="inner", memory=1_000_000, schema=SCHEMA)
    counted = later.inner if isinstance(later, FrontStage) else later
    assert counted.budget.parts()["updates of R"] == relation.overlay.nbytes
    least = find(algorithm).minimum_memory(relation, SCHEMA, on="id")
    assert least == 1 or least > relation.overlay.nbytes


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_an_update_too_large_is_refused_with_what_would_do(tmp_path: Path, algorithm: str) -> None:
    relation = relation_of(tmp_path / "r", 1000)
    small = semistream.create(algorithm, relation, on="id", how="left", memory=150_000, schema=SCHEMA)
    before = small.budget.parts()
    large = table({key: (-key,) for key in range(20_000)})
    with pytest.raises(UpdateTooLargeError, match=r"lacks .* B for that; give the join") as refusal:
        relation.apply(large)
    assert relation.revision == 0
    assert small.budget.parts() == before
    client = Client(small)
    client.offer(list(range(1500)), {key: (key,) for key in range(1000)})
    client.finish()
    enough = int(str(refusal.value).split("give the join ")[1].split(" B")[0].replace(",", ""))
    relation = Relation.open(tmp_path / "r")
    client = Client(semistream.create(algorithm, relation, on="id", how="left", memory=enough, schema=SCHEMA))
    relation.apply(large)
    client.offer(list(range(1500)), {key: (-key,) for key in range(20_000)})
    client.finish()


@pytest.mark.parametrize("algorithm", ["ssij", "front+ssij"])
def test_ssij_never_turns_for_ever_after_updates(tmp_path: Path, algorithm: str) -> None:
    relation_of(tmp_path / "r", 20_000, page_size=8192).close()
    for extra in (20_000, 90_000, 200_000):
        for share in (None, 0.5):
            options = {} if share is None or algorithm != "ssij" else {"cache_share": share}
            relation = Relation.open(tmp_path / "r")
            least = find(algorithm).minimum_memory(relation, SCHEMA, on="id", **options)
            join = semistream.create(algorithm, relation, on="id", memory=least + extra, schema=SCHEMA, **options)
            for count in range(1, 30):
                try:
                    relation.apply(table({key * 500: (key,) for key in range(count)}))
                except UpdateTooLargeError:
                    break
                results = list(join.process([batch(range(0, 20_000, 40))]))
                assert sum(result.num_rows for result in results) == 500
                join.check()


def test_a_join_that_gets_nowhere_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join = semistream.create("hybridjoin", relation_of(tmp_path / "r"), on="id", how="inner", memory="1MB")
    join.offer(batch(range(10)))
    monkeypatch.setattr(join, "turn", lambda: iter(()))
    with pytest.raises(StalledJoinError, match="10 tuples"):
        list(join.drain())


@pytest.mark.parametrize("algorithm", algorithms())
def test_a_join_that_fails_to_follow_serves_nothing_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    relation = relation_of(tmp_path / "r")
    joins = [
        semistream.create(algorithm, relation, on="id", how="inner", memory="2MB", schema=SCHEMA) for _ in range(3)
    ]
    for join in joins:
        list(join.process([batch(range(500))] * 2))

    def fails(change: object) -> None:
        raise ZeroDivisionError("told")

    bad = joins[1]
    broken = bad.inner if isinstance(bad, FrontStage) else bad
    monkeypatch.setattr(broken, "after_update", fails)
    relation.apply(table(dict.fromkeys(range(500), (-7,))))
    assert relation.revision == 1
    for join in (joins[0], joins[2]):
        values = {value for result in join.process([batch(range(500))]) for value in result["v"].to_pylist()}
        assert values == {-7}
    for use in (lambda: bad.offer(batch([1])), lambda: list(bad.step()), lambda: list(bad.drain())):
        with pytest.raises(BrokenJoinError, match="ZeroDivisionError: told"):
            use()
    relation.apply(table({1: (1,)}))  # it keeps nobody from updating R
    assert relation.revision == 2


@pytest.mark.parametrize("algorithm", [name for name in algorithms() if name not in ("p_cachejoin", "op_cachejoin")])
def test_an_update_amid_a_turn_is_refused(tmp_path: Path, algorithm: str) -> None:
    relation = relation_of(tmp_path / "r")
    join = semistream.create(algorithm, relation, on="id", how="left", memory="300KB")
    client = Client(join)
    model: Model = {key: (key,) for key in range(2000)}
    client.offer(list(range(1000, 2400)), model)
    turn = join.drain()
    client.take([next(turn)])
    if not join.amid_turn and not (isinstance(join, FrontStage) and join.inner.amid_turn):
        pytest.skip("this turn was at its end")
    with pytest.raises(UpdateRefusedError, match="during an iteration"):
        relation.apply(table({1: (9,)}))
    client.take(turn)
    client.finish()
    relation.apply(table({1: (9,)}))


@pytest.mark.parametrize("behind", ["front+inlj", "cachejoin", "front+ssij"])
def test_memory_lent_for_an_update_that_is_refused_is_given_back(tmp_path: Path, behind: str) -> None:
    """The cache in front makes room for the join behind; another refuses, and both budgets are what they were."""
    with relation_of(tmp_path / "r", 400) as relation:
        lent = 0
        for factor in (1.05, 1.2, 1.5, 2.0):
            least = find(behind).minimum_memory(relation, SCHEMA, on="id")
            join = find(behind)(relation, on="id", memory=int(least * factor), schema=SCHEMA)
            assert isinstance(join, FrontStage)
            list(join.process([batch(range(50))]))
            relation.unsubscribe(join)
            for keys in range(10, 200, 10):
                total, peak = join.inner.budget.total, join.inner.budget.peak
                patch = relation.prepare(table({key: (-key,) for key in range(keys)}))
                try:
                    agreed = join.prepare_update(patch)
                except UpdateTooLargeError:
                    join.check()
                    break
                lent += join.inner.budget.total > total
                agreed.cancel()
                join.check()
                assert join.inner.budget.total == total
                assert peak <= join.inner.budget.peak <= total
        assert lent, "nothing was lent, and so nothing tested"
