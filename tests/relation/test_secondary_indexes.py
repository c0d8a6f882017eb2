"""Secondary indexes: every version has R and its indexes with the same rows, whatever wrote it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream import Relation
from semistream.core.errors import RelationBuildError, SemistreamError, UnknownIndexError
from semistream.relation.damage.verify import find_faults

COLUMNS = ["email", ("city", "age")]


def people(rng: np.random.Generator, ids: np.ndarray, places: int = 5) -> pa.Table:
    emails = [None if rng.random() < 0.1 else f"user{rng.integers(60)}@x{'y' * rng.integers(12)}" for _ in ids]
    return pa.table(
        {
            "id": ids,
            "email": pa.array(emails, pa.string()),
            "city": pa.array([f"city {rng.integers(places)}" for _ in ids]).dictionary_encode(),
            "age": pa.array(rng.integers(3, size=ids.size), pa.int16()),
        }
    )


def rows_of(relation: Relation) -> Counter:
    return Counter(tuple(row.values()) for batch in relation.to_batches() for row in batch.to_pylist())


def check_in_step(path: Path, version: int | None = None) -> None:
    """Each index has exactly R's rows without a NULL in its columns, each in the page that its index names."""
    with Relation.open(path, version=version) as relation:
        rows = rows_of(relation)
        names = relation.schema.names
        assert [faults.message for faults in find_faults(relation)] == []
        for columns in relation.secondary_indexes:
            places = [names.index(column) for column in columns]
            expected = Counter({row: n for row, n in rows.items() if all(row[at] is not None for at in places)})
            with relation.by(columns) as index:
                assert index.version == relation.version
                assert rows_of(index) == expected
                assert [faults.message for faults in find_faults(index)] == []
                found = index.lookup(pa.table({c: relation.to_table()[c] for c in columns}), many=True)
                assert found.num_rows >= len(expected)


@pytest.mark.sampled
@pytest.mark.parametrize("shards", [1, 3])
def test_random_histories_stay_in_step(tmp_path: Path, shards: int) -> None:
    rng = np.random.default_rng(shards)
    path = tmp_path / "people"
    Relation.build(people(rng, np.arange(300)), path, key="id", page_size=512, shards=shards, indexes=COLUMNS).close()
    check_in_step(path)
    with Relation.open(path) as relation:
        for _ in range(14):
            ids = np.unique(rng.integers(0, 500, rng.integers(1, 40)))
            match rng.integers(5):
                case 0:
                    relation.delete(pa.array(ids))
                case 1:
                    relation.compact()
                case 2:
                    relation.update(upserts=people(rng, ids), deletes=pa.array(np.setdiff1d(np.arange(20), ids)))
                case _:
                    relation.upsert(people(rng, ids))
            assert relation.secondary_indexes == [("email",), ("city", "age")]
            check_in_step(path)
    for version in semistream.history(path):
        check_in_step(path, version.number)
    semistream.vacuum(path, older_than=0)
    check_in_step(path)


def test_many_rows_per_key_and_a_key_that_is_hashed(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    path = tmp_path / "people"
    table = people(rng, np.repeat(np.arange(50), 4))
    text = table.set_column(0, "id", table["id"].cast(pa.string()))
    with Relation.build(text, path, key="id", page_size=512, indexes=COLUMNS) as relation:
        check_in_step(path)
        more = people(rng, np.repeat(np.arange(40, 60), 3))
        relation.update(upserts=more.set_column(0, "id", more["id"].cast(pa.string())), deletes=pa.array(["3", "x"]))
        check_in_step(path)


def test_a_large_update_sorts_the_index_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semistream.relation.secondary import keeping_in_step

    rng = np.random.default_rng(8)
    path = tmp_path / "people"
    with Relation.build(people(rng, np.arange(300)), path, key="id", page_size=512, indexes=COLUMNS) as relation:
        built: list[tuple[str, ...]] = []
        build = keeping_in_step.built_index
        monkeypatch.setattr(
            keeping_in_step, "built_index", lambda *given, **named: (built.append(given[2]), build(*given, **named))[1]
        )
        relation.upsert(people(rng, np.arange(3)))
        assert not built
        monkeypatch.setitem(keeping_in_step.with_indexes_in_step.__kwdefaults__, "memory", 10_000)
        relation.upsert(people(rng, np.arange(200)))
        assert built == [("email",), ("city", "age")]
    check_in_step(path)


def test_an_index_is_added_and_removed(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    path = tmp_path / "people"
    with Relation.build(people(rng, np.arange(100)), path, key="id") as relation:
        with pytest.raises(UnknownIndexError, match="no index on email; it can be joined on its key, id"):
            relation.by("email")
        assert relation.add_index("email") == 2
        assert relation.add_index(["city", "age"]) == 3
        with pytest.raises(RelationBuildError, match="already has an index on email"):
            relation.add_index("email")
        relation.upsert(people(rng, np.arange(90, 110)))
        check_in_step(path)
        assert relation.drop_index("email") == 5
        assert relation.secondary_indexes == [("city", "age")]
        relation.upsert(people(rng, np.arange(90, 110)))
        check_in_step(path)
        with pytest.raises(UnknownIndexError, match="and on city, age"):
            relation.drop_index("email")
        with pytest.raises(RelationBuildError, match="is R's key"):
            relation.drop_index("id")
        with Relation.open(path, version=4, by="email") as index:
            assert index.key.names == ("email",)


def test_what_an_index_cannot_be(tmp_path: Path) -> None:
    table = people(np.random.default_rng(1), np.arange(10)).append_column("weight", pa.array(np.arange(10.0)))
    with pytest.raises(RelationBuildError, match="R's key, which needs no index"):
        Relation.build(table, tmp_path / "r", key="id", indexes=["id"])
    with pytest.raises(RelationBuildError, match="asked for twice"):
        Relation.build(table, tmp_path / "r", key="id", indexes=["email", "email"])
    for columns, what in (("weight", "weight"), ("nothing", "nothing")):
        with pytest.raises(ValueError, match=what):
            Relation.build(table, tmp_path / "r", key="id", indexes=[columns])
        assert not (tmp_path / "r").exists()
    with Relation.build(table, tmp_path / "r", key="id", indexes=["email"]) as relation:
        with pytest.raises(ValueError, match="weight"):
            relation.add_index("weight")
        assert relation.version == 1
        with relation.by("email") as index, pytest.raises(SemistreamError, match="this is its index on email"):
            index.upsert(table)


@pytest.mark.parametrize("algorithm", ["adaptivejoin", "hybridjoin", "inlj"])
def test_a_join_on_an_index_equals_the_join_of_the_tables(tmp_path: Path, algorithm: str) -> None:
    rng = np.random.default_rng(3)
    table = people(rng, np.arange(500))
    stream = pa.record_batch(
        {"email": pa.array([f"user{n}@x" for n in rng.integers(80, size=400)] + [None]), "amount": np.arange(401)}
    )
    with (
        Relation.build(table, tmp_path / "r", key="id", page_size=512, indexes=["email"]) as relation,
        semistream.create(algorithm, relation, on="email", by="email", how="inner", memory="1MB") as join,
    ):
        found = pa.Table.from_batches(join.process([stream]))
    expected = pa.Table.from_batches([stream]).join(
        table.cast(pa.schema([*[*table.schema][:2], pa.field("city", pa.string()), table.schema.field("age")])),
        "email",
        join_type="inner",
    )
    order = [(name, "ascending") for name in ("amount", "id")]
    names = ["email", "amount", "id", "age"]
    assert found.select(names).sort_by(order) == expected.select(names).sort_by(order)


def test_a_version_of_a_writer_that_does_not_know_indexes_has_none(tmp_path: Path) -> None:
    """Never an index of another version: rows would be missing."""
    import dataclasses

    with Relation.build(
        people(np.random.default_rng(1), np.arange(9)), tmp_path / "r", key="id", indexes=["email"]
    ) as r:
        following = dataclasses.replace(r.stored, version=2)
        assert r.stored.indexes
        assert not following.indexes


def test_a_damaged_index_is_sorted_again_from_the_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    path = tmp_path / "people"
    with Relation.build(people(rng, np.arange(200)), path, key="id", page_size=512, indexes=COLUMNS) as relation:
        pages = path / relation.stored.indexes[0].shards[0].pages_file
    with open(pages, "r+b") as file:
        file.seek(3 * 512 + 100)
        file.write(b"!!")
    with Relation.open(path, by="email") as index:
        assert [fault.page for fault in find_faults(index)] == [3]
    repaired = semistream.repair(path)
    assert [one.proof for one in repaired] == ["rows"]
    assert semistream.history(path)[-1].number == 2
    check_in_step(path)
    with pytest.raises(semistream.errors.RepairError, match="the index on email of version 1"):
        semistream.repair(path)
    semistream.vacuum(path, older_than=0)
    with Relation.open(path) as relation:
        again = path / relation.stored.indexes[1].shards[0].index_file
        whole = again.read_bytes()
        again.write_bytes(whole[:-3])
        assert [one.proof for one in semistream.repair(path)] == ["pages"], "in place: the pages are whole"
        assert again.read_bytes() == whole
    check_in_step(path)


def test_tuning_measures_the_index_and_not_the_relation(tmp_path: Path) -> None:
    from semistream.tuner.trial import try_best

    rng = np.random.default_rng(4)
    sample = [pa.record_batch({"email": [f"user{n}@x" for n in range(60)]})]
    with (
        Relation.build(
            people(rng, np.arange(400)), tmp_path / "r", key="id", page_size=512, indexes=["email"]
        ) as relation,
        relation.by("email") as index,
    ):
        tuning = semistream.tune(index, "1MB", schema=sample[0].schema, algorithms=["adaptivejoin"])
        assert try_best(index, tuning, sample, ["email"], most=1, seconds=0.1).measured["adaptivejoin"] > 0
