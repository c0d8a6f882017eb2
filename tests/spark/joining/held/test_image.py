"""Images of relations: every key is found, none that is not there; built once, by whichever process is first."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import semistream
from semistream.core.errors import BudgetTooSmallError, StorageError, UnsupportedJoinError
from semistream.relation.versions.pins import Pin
from semistream.spark.joining import warm
from semistream.spark.joining.held import images
from semistream.spark.joining.held.image import Image, build_image, image_bytes
from semistream.spark.joining.held.images import open_image
from semistream.spark.joining.held.key_table import KeyTable, fill_table, find_places, layout_for
from semistream.spark.joining.task_relation import TaskRelation

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=200)


@given(KEYS, KEYS, st.booleans())
def test_a_table_finds_its_keys_and_no_others(keys: list[int], others: list[int], close: bool) -> None:
    if close:
        keys, others = [key % 300 - 100 for key in keys], [key % 400 - 150 for key in others]
    held = np.unique(np.array(keys, np.int64))
    layout = layout_for(held.size, int(held.min(initial=0)), int(held.max(initial=-1)), exact=True)
    slots = np.zeros(0 if layout.direct else layout.slots, np.int64)
    table = KeyTable(layout, slots, np.full(layout.slots, -1, np.int32))
    fill_table(table, held, np.arange(held.size))
    asked = np.array([*keys, *others, 2**63 - 1, -(2**63)], np.int64)
    valid = np.arange(asked.size) % 7 != 3
    places, hits = find_places(table, asked, valid)
    there = {int(key): place for place, key in enumerate(held)}
    expected = [there.get(key, -1) if ok else -1 for key, ok in zip(asked.tolist(), valid, strict=True)]
    assert places.tolist() == expected
    assert hits == sum(place >= 0 for place in expected)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(warm, "_MEMORY_FILES", tmp_path / "shm")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    (tmp_path / "shm").mkdir()
    (tmp_path / "local").mkdir()
    return tmp_path


def relation_at(path: Path, rows: int = 5000) -> TaskRelation:
    ids = np.arange(rows)
    table = pa.table(
        {"code": [f"p{i}" for i in ids], "kind": ids % 7, "name": [f"n{i}" * (i % 3) or None for i in ids]}
    )
    semistream.Relation.build(table, path, ["code", "kind"], shards=3, page_size=4096).close()
    return TaskRelation(str(path), 1, table.schema, ("code", "kind"))


def found_in(image: Image, rows: int = 5000) -> list[str | None]:
    """Look every second key up, one that has another kind, one that is NULL and one that is not there."""
    ids = np.arange(0, rows, 2)
    codes = pa.array([*(f"p{i}" for i in ids), "p1", None, "no such"])
    keys = pa.record_batch({"0": codes, "1": pa.array([*(ids % 7), 5, 0, 0])})
    places, valid = image.find(keys)
    assert valid.tolist() == [True] * ids.size + [True, False, True]
    assert places[-3:].tolist() == [-1, -1, -1]
    (names,) = image.gather(["name"])(image.data, places.astype(np.int64))
    return names.to_pylist()[:-3]


def expected(rows: int = 5000) -> list[str | None]:
    return [f"n{i}" * (i % 3) or None for i in range(0, rows, 2)]


def test_an_image_has_all_rows(place: Path) -> None:
    relation = relation_at(place / "r")
    image, read = open_image(relation, Pin(1), "query", 1 << 20)
    assert read.pages > 0
    assert image.rows == 5000
    assert found_in(image) == expected()
    again, read = open_image(relation, Pin(1), "query", 1 << 20)
    assert read.pages == 0
    assert found_in(again) == expected()
    with semistream.Relation.open(place / "r") as opened:
        assert image.nbytes <= image_bytes(opened.row_count, opened.page_count * opened.device.frame_bytes)


def test_an_empty_relation_has_an_image(place: Path) -> None:
    table = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    semistream.Relation.build(table, place / "r", "id").close()
    image, _ = open_image(TaskRelation(str(place / "r"), 1, table.schema, ("id",)), Pin(1), None, 1 << 20)
    assert image.find(pa.record_batch({"0": pa.array([1, None])}))[0].tolist() == [-1, -1]


def test_a_new_version_takes_the_place_of_the_old_one(place: Path) -> None:
    relation = relation_at(place / "r")
    old, _ = open_image(relation, Pin(1), "query", 1 << 20)
    row = pa.table({"code": ["p0"], "kind": [0], "name": ["new"]})
    semistream.upsert(place / "r", row)
    new, _ = open_image(relation, Pin(2), "query", 1 << 20)
    assert found_in(new)[0] == "new"
    assert found_in(old)[0] is None, "a task that has mapped it keeps it"
    kept = list((place / "shm").glob("*/query/held-*/*"))
    assert [one.name.split("-")[0] for one in kept] == ["000000000002"]
    again, _ = open_image(relation, Pin(1), "query", 1 << 20)  # a micro-batch that is done again
    assert found_in(again) == expected()


def test_one_process_builds_and_others_wait(place: Path) -> None:
    relation = relation_at(place / "r", 20_000)
    context = multiprocessing.get_context("fork")
    counts = context.Queue()

    def run() -> None:
        image, read = open_image(relation, Pin(1), "query", 1 << 22)
        counts.put((read.pages > 0, found_in(image, 20_000) == expected(20_000)))

    processes = [context.Process(target=run) for _ in range(4)]
    for process in processes:
        process.start()
    found = [counts.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(found) == [(False, True)] * 3 + [(True, True)]


def test_a_builder_that_is_killed_leaves_no_image(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relation = relation_at(place / "r")

    def die(opened: semistream.Relation, directory: Path, **options: bool) -> None:
        build_image(opened, directory, **options)
        (directory / "ready").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(
        target=lambda: (setattr(images, "build_image", die), open_image(relation, Pin(1), "query", 1 << 20))
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    image, read = open_image(relation, Pin(1), "query", 1 << 20)
    assert read.pages > 0
    assert found_in(image) == expected()


def test_what_does_not_fit_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relation = relation_at(place / "r")
    with pytest.raises(BudgetTooSmallError, match=r"to be held whole.*restart the query"):
        open_image(relation, Pin(1), "query", 50_000)
    monkeypatch.setattr(images, "room_at", lambda _: 1000)
    with pytest.raises(StorageError, match=r"this machine has no space.*SPARK_LOCAL_DIRS"):
        open_image(relation, Pin(1), "query", 1 << 20)
    monkeypatch.undo()
    row = pa.table({"code": ["p0", "p0"], "kind": [0, 0], "name": ["a", "b"]})
    semistream.upsert(place / "r", row)
    with pytest.raises(UnsupportedJoinError, match="several rows per key"):
        open_image(relation, Pin(2), "query", 1 << 20)
