"""Updates of one open relation by several threads: none is lost, none is written over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import SemistreamError
from semistream.relation.changes import preparing
from semistream.relation.changes.invariants import check_relation
from semistream.relation.relation import Relation

ROWS = 4000


@pytest.fixture
def relation(tmp_path: Path) -> Iterator[Relation]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    table = pa.table({"id": np.arange(ROWS), "v": np.zeros(ROWS, np.int64)})
    with Relation.build(table, tmp_path / "r", key="id", page_size=512) as relation:
        relation.apply(table.take(np.arange(0, ROWS, 10)))  # pages in memory, and room for more
        yield relation
    sys.setswitchinterval(interval)


def rows(ids: range, value: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": [value] * len(ids)})


def content(relation: Relation) -> dict[int, int]:
    found = relation.to_table()
    assert found.num_rows == ROWS
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def at_once(*work: Any) -> None:
    begin = threading.Barrier(len(work))

    def run(one: Any) -> None:
        begin.wait()
        one()

    threads = [threading.Thread(target=run, args=[one]) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_two_threads_apply_at_once_is_all_there(relation: Relation) -> None:
    for number in range(1, 20):
        ours, theirs = rows(range(0, ROWS, 40), number), rows(range(20, ROWS, 40), -number)
        at_once(lambda rows=ours: relation.apply(rows), lambda rows=theirs: relation.apply(rows.to_reader()))
        found = content(relation)
        assert [found[key] for key in range(0, ROWS, 40)] == [number] * (ROWS // 40)
        assert [found[key] for key in range(20, ROWS, 40)] == [-number] * (ROWS // 40)
    check_relation(relation)
    assert (relation.version, relation.revision) == (1, 1 + 2 * 19)


def test_of_two_updates_that_are_worked_out_at_once_one_has_no_trace_of_the_other(relation: Relation) -> None:
    for number in range(1, 50):
        patches: dict[int, Any] = {}

        def prepare(first: int, value: int, patches: dict[int, Any] = patches) -> None:
            patches[first] = relation.prepare(rows(range(first, first + 2000, 40), value))

        at_once(lambda n=number: prepare(0, n), lambda n=number: prepare(2000, -n))
        relation.install(patches[0])
        found = content(relation)
        assert [found[key] for key in range(0, 2000, 40)] == [number] * 50
        assert all(found[key] == 0 for key in range(2000, ROWS))
        with pytest.raises(SemistreamError, match="prepare it again"):
            relation.install(patches[2000])


def test_an_update_that_another_came_before_is_not_installed(
    relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, others = preparing._patch_shard, [rows(range(1, 2), 111)]

    def interrupted(*args: Any) -> Any:
        done = work(*args)
        if others:
            relation.apply(others.pop())
        return done

    monkeypatch.setattr(preparing, "_patch_shard", interrupted)
    patch = relation.prepare(rows(range(900, 901), 999))
    with pytest.raises(SemistreamError, match="prepare it again"):
        relation.install(patch)
    assert content(relation)[1] == 111
    relation.apply(rows(range(900, 901), 999))
    found = content(relation)
    assert (found[1], found[900]) == (111, 999)


@pytest.fixture
def slow_opening(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The first opening of version 2 waits after it has read the manifest: until then, other threads may be first."""
    opened, go_on, real = threading.Event(), threading.Event(), Relation.open.__func__

    def slow(cls: type[Relation], path: Any, *, version: int | None = None, **options: Any) -> Relation:
        found = real(cls, path, version=version, **options)
        if found.version == 2 and not opened.is_set():
            opened.set()
            assert go_on.wait(30)
        return found

    monkeypatch.setattr(Relation, "open", classmethod(slow))
    return opened, go_on


def test_a_relation_does_not_go_back_to_the_version_of_a_slower_thread(
    tmp_path: Path, slow_opening: tuple[threading.Event, threading.Event]
) -> None:
    opened, go_on = slow_opening
    with Relation.build(rows(range(10), 0), tmp_path / "r", key="id") as relation, ThreadPoolExecutor(1) as pool:
        first = pool.submit(relation.upsert, rows(range(1), 1))
        assert opened.wait(30)
        assert relation.upsert(rows(range(1, 2), 2)) == 3
        go_on.set()
        assert first.result(30) == 2
        assert relation.version == 3
        assert relation.lookup([0, 1, 2])["v"].to_pylist() == [1, 2, 0]


def test_a_relation_that_is_closed_during_an_update_stays_closed(
    tmp_path: Path, slow_opening: tuple[threading.Event, threading.Event]
) -> None:
    opened, go_on = slow_opening
    relation = Relation.build(rows(range(10), 0), tmp_path / "r", key="id")
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(relation.upsert, rows(range(1), 1))
        assert opened.wait(30)
        relation.close()
        go_on.set()
        assert update.result(30) == 2
    assert relation.closed
