"""The operator that parks rows, without Spark around it: states are dictionaries."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from semistream.relation.relation import Relation
from semistream.relation.versions import pins
from semistream.relation.versions.moments import name_of_batch
from semistream.spark.joining import parking
from semistream.spark.joining.join_task import JoinTask, TaskMemory
from semistream.spark.joining.missing import Marker
from semistream.spark.joining.parked_rows import PARKED, ParkedColumns, packed, unpacked
from semistream.spark.joining.task_relation import TaskRelation

NOW = 1_794_767_337_481
HOUR = 3_600_000
ROWS = pa.schema([("id", pa.int64()), ("missing_in", pa.string())])


class Value:
    def __init__(self) -> None:
        self.held: Any = None

    def get(self) -> Any:
        return self.held

    def update(self, value: Any) -> None:
        self.held = value

    def clear(self) -> None:
        self.held = None


class Values(dict[Any, Any]):
    containsKey, updateValue, getValue = dict.__contains__, dict.__setitem__, dict.__getitem__
    removeKey, iterator = dict.__delitem__, dict.items

    def keys(self) -> Any:
        return list(super().keys())


def task_of(path: Path) -> JoinTask:
    settings = {"on": ("id",), "how": "left", "suffix": "_right"}
    stored = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    return JoinTask(
        TaskRelation(str(path), 1, stored, ("id",)), "inlj", TaskMemory(1 << 20), tuple(ROWS.names),
        pa.schema([("v", pa.int64())]), settings, marker=Marker(1, PARKED), timed=True,
    )  # fmt: skip


def context_of(query: str, batch: int) -> Any:
    return SimpleNamespace(
        getLocalProperty={"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}.get,
        partitionId=lambda: 0,
    )


def build(path: Path, *ids: int) -> None:
    Relation.build(pa.table({"id": ids, "v": [10 * one for one in ids]}), path, "id").close()


def told_of(late: int = 0, expired: int = 0, waiting: int = 0) -> Any:
    return parking.Row(blob=None, found_late=late, expired=expired, waiting=waiting)


def test_rows_are_tried_with_a_relation_made_anew_under_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r"
    columns = ParkedColumns(("id",), ROWS)
    operator = parking._Parking(task_of(path), parking._Final(1, "null", "r"), columns, HOUR, 1 << 20, idle=False)
    operator.init(
        SimpleNamespace(getMapState=lambda *_: Values(), getValueState=lambda *_: Value(), registerTimer=lambda _: None)
    )

    def batch(number: int, *fresh: int) -> tuple[list[dict[str, Any]], Any]:
        monkeypatch.setattr(parking.TaskContext, "get", lambda: context_of("q-1", number))
        waiting = pa.record_batch({"id": list(fresh), "missing_in": pa.nulls(len(fresh), pa.string())}, schema=ROWS)
        blob = packed(waiting).to_pybytes() if fresh else None
        row = SimpleNamespace(now=NOW + 1000 * number, blob=blob, missing=True)
        *out, told = operator.handleInputRows((0,), [row], None)
        return [joined for one in out for part in unpacked(one.blob) for joined in part.to_pylist()], told

    build(path, 1)
    assert batch(0, 5, 6) == ([], told_of(waiting=2))
    assert batch(1) == ([], told_of(waiting=2))
    shutil.rmtree(path)
    build(path, 1, 5)
    assert batch(2) == ([{"id": 5, "missing_in": None, "v": 50}], told_of(late=1, waiting=1))
    assert batch(3) == ([], told_of(waiting=1))
    operator.idle, timers = True, [NOW]
    monkeypatch.setattr(operator._handle, "listTimers", lambda: list(timers), raising=False)
    monkeypatch.setattr(operator._handle, "deleteTimer", timers.remove, raising=False)
    monkeypatch.setattr(operator._handle, "registerTimer", timers.append)
    assert batch(4) == ([], told_of(waiting=1))
    assert timers == [NOW + 4001]  # or what waits would be counted a second time by the timer of the batch before
    assert batch(3601) == ([{"id": 6, "missing_in": None, "v": None}], told_of(expired=1))


def test_a_second_query_at_the_same_moment_has_its_pin_for_itself(tmp_path: Path) -> None:
    """Triggers of an interval begin at the same millisecond; the one query may be replayed when the other is far on."""
    path = tmp_path / "r"
    build(path, 1)
    task = task_of(path)
    # The first has noted its name for that moment, and not yet come to pin a version.
    on = task.settings["on"]
    join = hashlib.sha256(repr((task.relation.path, tuple(on))).encode()).hexdigest()[:12]
    assert name_of_batch([path / pins.PINS], join, NOW, "q-1", 1) == ("q-1", 1)
    assert task.relation.pin(context_of("q-2", 9), NOW, on).version == 1
    Relation.build(pa.table({"id": [2], "v": [2]}), path, "id", overwrite=True).close()
    for batch in range(2, 3 + pins.KEPT_PINS):
        pins.version_for(path, "q-1", batch)
    assert not (path / pins.PINS / "q-1" / f"{1:012d}").exists()
    assert task.relation.pin(context_of("q-2", 9), NOW, on).version == 1
