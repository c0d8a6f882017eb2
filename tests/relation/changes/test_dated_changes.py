"""Changes of a history that have their own times, in any order: the rows are those of all changes in order of time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.core.errors import RelationBuildError
from semistream.relation.changes.dated_changes import prepare_dated
from semistream.relation.changes.patch import Patch
from semistream.relation.changes.updatable import State
from semistream.relation.relation import Relation

KEYS = 6
MOMENT = pa.timestamp("s")
History = dict[int, list[tuple[int, int | None, int]]]
"""Begin, end and value of each row, by key."""


def times(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(MOMENT)


def named(key: int, text: bool) -> int | str:
    return f"k{key}" if text else key


def _prepared(relation: Relation, upserts: pa.Table | None, deletes: pa.Table | None) -> Patch:
    now = State(relation.revision, list(relation.indexes), relation.overlay, relation.row_count, relation.unique)
    return prepare_dated(relation, now, upserts, deletes)


def table(rows: list[tuple[int, int, int | None, int]], text: bool) -> pa.Table:
    keys, begins, ends, values = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    return pa.table({
        "id": pa.array([named(key, text) for key in keys], pa.string() if text else pa.int64()),
        "since": times(begins), "until": times(ends), "v": pa.array(values, pa.int64()),
    })  # fmt: skip


def held(relation: Relation) -> History:
    found: History = {}
    for row in relation.to_table().select(["id", "since", "until", "v"]).to_pylist():
        key = int(str(row["id"]).lstrip("k"))
        since, until = (
            None if at is None else round((at - _EPOCH).total_seconds()) for at in (row["since"], row["until"])
        )
        assert since is not None
        found.setdefault(key, []).append((since, until, row["v"]))
    return {key: sorted(rows) for key, rows in found.items()}


_EPOCH = times([0])[0].as_py()


def changed(history: History, upserts: list[tuple[int, int, int]], deletes: list[tuple[int, int]]) -> History:
    """Apply changes as what they are: events on a line of time, of which each ends what was before it."""
    events: dict[int, dict[int, int | None]] = {key: {} for key in range(KEYS)}
    for key, rows in history.items():
        events[key] |= {begin: value for begin, _, value in rows}
        for _, end, _ in rows:
            if end is not None:
                events[key].setdefault(end, None)
    for key, at, value in upserts:
        events[key][at] = value
    for key, at in deletes:
        events[key][at] = None
    found: History = {}
    for key, line in events.items():
        ordered = sorted(line)
        for at, end in zip(ordered, [*ordered[1:], None][: len(ordered)], strict=True):
            if (value := line[at]) is not None:
                found.setdefault(key, []).append((at, end, value))
    return found


@pytest.mark.parametrize("text", [False, True])
def test_changes_in_any_order(tmp_path: Path, text: bool) -> None:
    rng = random.Random(text)
    for number in range(25):
        start = [(key, rng.randint(0, 20), None, key * 100) for key in range(KEYS) if rng.random() < 0.7]
        path = tmp_path / f"{number}"
        Relation.build(table(start, text), path, "id", valid_from="since", valid_to="until", page_size=512).close()
        with Relation.open(path) as relation:
            for _ in range(6):
                both = rng.sample([(key, at) for key in range(KEYS) for at in range(31)], rng.randint(0, 9))
                part = rng.randint(0, len(both))
                upserts, deletes = [(*change, rng.randint(1000, 9999)) for change in both[:part]], both[part:]
                expected = changed(held(relation), upserts, deletes)
                rows = table([(key, at, None, value) for key, at, value in upserts], text)
                gone = table([(key, at, None, 0) for key, at in deletes], text).select(["id", "since"])
                relation.install(_prepared(relation, rows, gone))
                assert held(relation) == expected, (number, upserts, deletes)


def test_what_is_open_is_refused(tmp_path: Path) -> None:
    rows = table([(1, 10, None, 1)], False)
    Relation.build(rows, tmp_path / "a", "id", valid_from="since", valid_to="until").close()
    with Relation.open(tmp_path / "a") as relation:
        twice = table([(1, 20, None, 2), (1, 20, None, 3)], False)
        with pytest.raises(RelationBuildError, match="changes twice at the same 'since'"):
            _prepared(relation, twice, None)
        with pytest.raises(RelationBuildError, match="changes twice at the same 'since'"):
            _prepared(relation, twice.slice(0, 1), twice.slice(0, 1).select(["id", "since"]))
    endless = rows.drop_columns(["until"])
    Relation.build(endless, tmp_path / "b", "id", valid_from="since").close()
    with Relation.open(tmp_path / "b") as relation:
        relation.install(_prepared(relation, endless.set_column(1, "since", times([5])), None))
        assert relation.to_table().column("since").to_pylist() == times([5, 10]).to_pylist()
        with pytest.raises(RelationBuildError, match="no column for its end; build it with valid_to"):
            _prepared(relation, None, endless.select(["id", "since"]))


def test_a_delete_at_the_first_moment(tmp_path: Path) -> None:
    """The row that begins there is gone; no number is before this moment."""
    kind = pa.uint64()
    rows = pa.table({"id": [1, 1, 2], "since": pa.array([0, 5, 0], kind), "until": pa.array([None] * 3, kind)})
    with Relation.build(rows, tmp_path / "r", "id", valid_from="since", valid_to="until") as relation:
        relation.install(_prepared(relation, None, pa.table({"id": [1, 2], "since": pa.array([0, 0], kind)})))
        assert relation.to_table().to_pylist() == [{"id": 1, "since": 5, "until": None}]
