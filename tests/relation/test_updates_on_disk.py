"""Versions on disk against a plain dictionary: upserts, deletes, compaction, readers on old versions, crashes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import CorruptPageError, NotARelationError
from semistream.joins import algorithms
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.updates import compact, delete, history, update, upsert, vacuum
from semistream.relation.versions.leases import Writer


def table(rows: dict[int, list[str]], text_key: bool = False) -> pa.Table:
    keys = [f"k{key}" if text_key else key for key, values in rows.items() for _ in values]
    kind = pa.string() if text_key else pa.int64()
    return pa.table(
        {"id": pa.array(keys, kind), "name": pa.array([v for values in rows.values() for v in values], pa.string())}
    )


def content(relation: Relation) -> list[tuple]:
    got = relation.to_table()
    return sorted(zip(got["id"].to_pylist(), got["name"].to_pylist(), strict=True))


def expected(rows: dict[int, list[str]], text_key: bool = False) -> list[tuple]:
    return sorted((f"k{key}" if text_key else key, value) for key, values in rows.items() for value in values)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("text_key", [False, True])
@pytest.mark.parametrize("fill", [1.0, 0.7])
def test_many_versions_each_as_it_was(tmp_path, shards, text_key, fill):
    rng = np.random.default_rng(5)
    truth = {int(key): [f"first {key}"] for key in range(0, 600, 2)}
    path = tmp_path / "r"
    Relation.build(table(truth, text_key), path, "id", page_size=512, shards=shards, fill=fill)
    states = {1: dict(truth)}
    for number in range(2, 9):
        renewed = rng.integers(0, 700, 60).tolist()
        new = {
            key: [f"v{number} " + "x" * int(rng.integers(0, 60)) for _ in range(int(rng.integers(1, 4)))]
            for key in renewed
        }
        gone = [key for key in rng.integers(0, 700, 20).tolist() if key not in new]
        keys = pa.array([f"k{key}" for key in gone] if text_key else gone, pa.string() if text_key else pa.int64())
        assert update(path, upserts=table(new, text_key), deletes=keys) == number
        truth = {key: values for key, values in truth.items() if key not in gone} | new
        states[number] = dict(truth)
    for number, state in states.items():
        with Relation.open(path, version=number) as relation:
            assert content(relation) == expected(state, text_key), f"version {number}"
            assert relation.row_count == sum(map(len, state.values()))
            if shards == 3:
                parts = [content(Relation.open(path, version=number, shards=[shard])) for shard in range(3)]
                assert sorted(row for part in parts for row in part) == expected(state, text_key)
    assert compact(path) == 9
    with Relation.open(path) as relation:
        assert content(relation) == expected(truth, text_key)
        assert history(path)[-1].changed_pages == 0
    assert [version.number for version in history(path)] == list(range(1, 10))


@pytest.mark.parametrize("algorithm", algorithms())
def test_joins_read_a_changed_version(tmp_path, algorithm):
    rng = np.random.default_rng(6)
    truth = {key: [f"first {key}"] for key in range(300)}
    path = tmp_path / "r"
    Relation.build(table(truth), path, "id", page_size=512, shards=2)
    for number in range(4):
        new = {int(key): [f"v{number}a", f"v{number}b" * 9] for key in rng.integers(0, 400, 50)}
        gone = [int(key) for key in rng.integers(0, 400, 10) if int(key) not in new]
        update(path, upserts=table(new), deletes=pa.array(gone, pa.int64()))
        truth = {key: values for key, values in truth.items() if key not in gone} | new
    stream = pa.record_batch({"id": rng.integers(0, 450, 900), "n": np.arange(900)})
    with Relation.open(path) as relation:
        join = semistream.create(algorithm, relation, on="id", how="left", memory="2MB")
        rows = [row for batch in join.process([stream]) for row in batch.to_pylist()]
    wanted = [
        (n, name)
        for n, key in zip(stream["n"].to_pylist(), stream["id"].to_pylist(), strict=True)
        for name in truth.get(key, [None])
    ]
    assert sorted(((row["n"], row["name"]) for row in rows), key=repr) == sorted(wanted, key=repr)


def test_a_reader_stays_on_its_version(tmp_path):
    path = tmp_path / "r"
    reader = Relation.build(table({1: ["a"], 2: ["b"]}), path, "id")
    upsert(path, table({2: ["c"], 3: ["d"]}))
    delete(path, pa.array([1]))
    assert content(reader) == [(1, "a"), (2, "b")]
    assert content(Relation.open(path)) == [(2, "c"), (3, "d")]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "r"
    Relation.build(table({key: ["start"] for key in range(100)}), path, "id", page_size=512)
    failures: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            for number in range(3):
                upsert(path, table({1000 + worker: [f"{number}"], worker: [f"w{worker} {number}"]}))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    rows = dict(content(Relation.open(path)))
    assert len(rows) == 103
    assert {key: rows[key] for key in (0, 1, 2, 1000, 1001, 1002)} == {
        0: "w0 2", 1: "w1 2", 2: "w2 2", 1000: "2", 1001: "2", 1002: "2",
    }  # fmt: skip
    assert manifests.latest(path) == 10


@pytest.mark.parametrize("fails_at", ["write", "commit"])
def test_a_crash_leaves_the_last_version(tmp_path, monkeypatch, fails_at):
    path = tmp_path / "r"
    Relation.build(table({key: ["start"] for key in range(50)}), path, "id", page_size=512)

    def crash(*_: object) -> None:
        raise RuntimeError("power cut")

    target = (
        "semistream.relation.writing_shards.write_file"
        if fails_at == "write"
        else "semistream.relation.storage.manifest.commit"
    )
    monkeypatch.setattr(target, crash)
    with pytest.raises(RuntimeError, match="power cut"):
        upsert(path, table({7: ["changed"]}))
    monkeypatch.undo()
    assert content(Relation.open(path)) == expected({key: ["start"] for key in range(50)})
    assert upsert(path, table({7: ["changed"]})) == 2
    assert dict(content(Relation.open(path)))[7] == "changed"


def test_vacuum_removes_what_nobody_needs(tmp_path):
    path = tmp_path / "r"
    Relation.build(table({key: ["start"] for key in range(200)}), path, "id", page_size=512)
    for number in range(4):
        upsert(path, table({number: [f"v{number}"]}))
    compact(path)
    (path / "shard-0000-deadbeef.pages").write_bytes(b"left by a crash")
    assert vacuum(path, keep=[3]) == [], "nothing is old enough"
    vacuum(path, keep=[3], older_than=-1)
    assert [version.number for version in history(path)] == [3, 6]
    assert dict(content(Relation.open(path, version=3)))[1] == "v1"
    assert dict(content(Relation.open(path)))[3] == "v3"
    assert not (path / "shard-0000-deadbeef.pages").exists()
    with pytest.raises(NotARelationError, match="has no version 4"):
        Relation.open(path, version=4)


def test_damage_of_a_changed_page_and_of_the_map_is_found(tmp_path):
    path = tmp_path / "r"
    Relation.build(table({key: ["start"] for key in range(200)}), path, "id", page_size=512)
    upsert(path, table({5: ["changed"]}))
    delta, page_map = next(path.glob("*.delta")), next(path.glob("*.map"))
    content_before = delta.read_bytes()
    delta.write_bytes(content_before[:100] + b"!" + content_before[101:])
    with pytest.raises(CorruptPageError, match=delta.name):
        Relation.open(path).to_table()
    delta.write_bytes(content_before[:-512])
    with pytest.raises(NotARelationError, match="truncated or replaced"):
        Relation.open(path)
    delta.write_bytes(content_before)
    damaged = bytearray(page_map.read_bytes())
    damaged[30] ^= 1
    page_map.write_bytes(damaged)
    with pytest.raises(NotARelationError, match="checksum"):
        Relation.open(path)
    os.unlink(page_map)
    with pytest.raises(NotARelationError, match="cannot be read"):
        Relation.open(path)
    assert len(Relation.open(path, version=1).to_table()) == 200


def test_a_delete_that_another_writer_came_before_still_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is worked out anew then, with keys that came from a reader, which is read once."""
    path = tmp_path / "r"
    Relation.build(pa.table({"id": range(100), "v": range(100)}), path, key="id").close()
    commit, others = Writer.commit, [pa.table({"id": [5000], "v": [1]})]

    def second(self: Writer, manifest: Manifest) -> None:
        if others:
            semistream.upsert(path, others.pop())
        commit(self, manifest)

    monkeypatch.setattr(Writer, "commit", second)
    assert semistream.delete(path, pa.table({"id": [1, 2, 3]}).to_reader()) == 3
    with Relation.open(path) as relation:
        assert set(relation.to_table()["id"].to_pylist()) == {*range(100), 5000} - {1, 2, 3}
