"""Guests of a task: their rows are looked up in other shards, a shard is opened once, and results stay small."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from semistream.joins import create
from semistream.relation.relation import Relation
from semistream.spark.joining.join_task import JoinTask, TaskMemory
from semistream.spark.joining.spreading.guests import Guests
from semistream.spark.joining.task_relation import TaskRelation

ROWS, SHARDS, LONG = 400, 4, 3_000
ROOM = 64 << 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    names = [str(number) * (LONG // 3) if 100 <= number < 110 else f"n{number}" for number in range(ROWS)]
    Relation.build(pa.table({"id": range(ROWS), "name": names}), tmp_path / "r", "id", shards=SHARDS).close()
    return tmp_path / "r"


class Counted(TaskRelation):
    opened_parts: ClassVar[list[int]] = []

    def opened(self, *given: object, **named: object) -> Relation:
        self.opened_parts.append(int(str(given[1])))
        return super().opened(*given, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 999, 10_000])
def test_a_shard_is_opened_once_and_results_are_small(path: Path, size: int) -> None:
    added = pa.schema([("name", pa.string())])
    stored = pa.schema([("id", pa.int64()), ("name", pa.string())])
    counted = Counted(str(path), 1, stored, ("id",))
    memory = TaskMemory(1 << 20, results=ROOM, guests=ROOM)
    task = JoinTask(counted, "adaptivejoin", memory, ("key",), added, {"on": ("key",)}, parts=SHARDS, shards=SHARDS)
    counted.opened_parts.clear()
    with Relation.open(path) as relation:
        table = relation.to_table()
    right = dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))
    with Relation.open(path, shards=[1]) as own:
        join = create("adaptivejoin", own, on="key", how="left", memory=1 << 20)
        home = own.key.shards(np.arange(ROWS + 100), SHARDS)
        hot = [key for key in [*range(100, 110), *range(ROWS, ROWS + 10)] if home[key] != 1]
        keys = np.random.default_rng(0).choice([*np.flatnonzero(home == 1), *hot * 4], 4000 if size > 1 else 100)
        given, is_guest = pa.array(keys, mask=keys % 7 == 0), home[keys] != 1
        batches = [
            (pa.record_batch({"key": given[at : at + size]}), is_guest[at : at + size])
            for at in range(0, keys.size, size)
        ]
        guests, found = Guests(task, own), []
        for part in guests.joined(join, batches):
            for result in part:
                for answers in guests.fill_in(result.select(["name"])):
                    assert answers.nbytes <= ROOM
                    found += answers["name"].to_pylist()
    wanted = [right.get(key) for key in given.to_pylist()]
    assert found == wanted
    assert size == 1 or sorted(counted.opened_parts) == [0, 2, 3]
    assert guests.count == sum(guest and name is not None for guest, name in zip(is_guest, wanted, strict=True))
