"""Random changes of columns, updates, indexes and compactions: a relation equals a dictionary at every version."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import RelationBuildError
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation

CHANGES = [
    "upsert",
    "upsert",
    "delete",
    "evolve",
    "evolve",
    "evolve",
    "compact",
    "upsert and evolve",
    "index",
    "rebuild",
]
KEYS: dict[str, dict[str, tuple[pa.DataType, Callable[[int], Any]]]] = {
    "integer": {"id": (pa.int64(), lambda n: n)},
    "byte": {"id": (pa.uint8(), lambda n: n)},
    "text": {"id": (pa.string(), lambda n: f"key {n}")},
    "decimal": {"id": (pa.decimal128(30, 4), lambda n: Decimal(n).scaleb(-4))},
    "time": {"id": (pa.timestamp("us"), lambda n: datetime(2026, 1, 1) + timedelta(hours=n))},
    "two columns": {
        "shop": (pa.string(), lambda n: f"shop {n % 7}"),
        "day": (pa.date32(), lambda n: date(2026, 1, 1) + timedelta(n // 7)),
    },
    "history": {"id": (pa.int64(), lambda n: n // 2), "since": (pa.int64(), lambda n: n % 2)},
}
"""Key columns by the number of a row. In a history, numbers that differ in the last bit are versions of a key."""


def value(chance: random.Random, kind: pa.DataType) -> Any:
    if chance.random() < 0.2:
        return None
    if pa.types.is_string(kind):
        return "ä" * chance.randrange(8)
    if pa.types.is_floating(kind):
        return float(chance.randrange(100)) / 4
    return chance.randrange(-100, 100)


WIDER = {
    pa.int8(): [pa.int32(), pa.int64(), pa.float64()],
    pa.int32(): [pa.int64(), pa.float64()],
    pa.float32(): [pa.float64()],
}
INDEXABLE = (pa.int8(), pa.int32(), pa.int64(), pa.string())
KINDS = [pa.int8(), pa.int32(), pa.float32(), pa.string(), pa.int64()]


class Model:
    """A relation, and a dictionary that has the same rows by their number; columns have the same names in both."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance, self.serial = random.Random(seed), 0
        self.kind = list(KEYS)[seed % len(KEYS)]
        self.fixed = {name: kind for name, (kind, _) in KEYS[self.kind].items()}
        self.history = self.kind == "history"
        self.options: dict[str, Any] = {"key": [name for name in self.fixed if name != "since"], "page_size": 512}
        if self.history:
            self.options["valid_from"] = "since"
        self.columns: dict[str, pa.DataType] = dict(self.fixed)
        self.indexed: str | None = None
        for _ in range(3):
            self.columns[self.fresh()] = self.chance.choice(KINDS)
        self.rows = self.some(range(40))
        self.options["shards"] = self.chance.choice([1, 3])
        self.relation = Relation.build(self.table(self.rows), path, **self.options)
        self.versions = {1: (self.schema, self.rows)}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))

    def fresh(self) -> str:
        self.serial += 1
        taken = [f"c{number}" for number in range(6) if f"c{number}" not in self.columns]
        return self.chance.choice(taken) if taken else f"d{self.serial}"

    def some(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        kinds = {name: kind for name, kind in self.columns.items() if name not in self.fixed}
        return {
            number: {**self.key(number), **{name: value(self.chance, kind) for name, kind in kinds.items()}}
            for number in numbers
        }

    def key(self, number: int) -> dict[str, Any]:
        return {name: made(number) for name, (_, made) in KEYS[self.kind].items()}

    def keys(self, numbers: Iterable[int]) -> pa.Table:
        schema = pa.schema([(name, kind) for name, kind in self.fixed.items() if name in self.options["key"]])
        return pa.Table.from_pylist([self.key(number) for number in numbers], schema)

    def table(self, rows: dict[int, dict[str, Any]]) -> pa.Table:
        return pa.Table.from_pylist(list(rows.values()), self.schema)

    def evolve(self) -> dict[str, Any]:
        """Change columns at random in the dictionary; return the arguments of `Relation.evolve`."""
        values = [name for name in self.columns if name not in self.fixed and name != self.indexed]
        drop = self.chance.sample(values, min(len(values), self.chance.choice([0, 0, 1])))
        kept = [name for name in values if name not in drop]
        renamed = self.chance.sample(kept, min(len(kept), self.chance.choice([0, 0, 1, 2])))
        rename = dict(
            zip(
                renamed,
                renamed[1:] + renamed[:1] if len(renamed) > 1 else [f"r{self.serial}"] * len(renamed),
                strict=True,
            )
        )
        self.serial += 1
        widen = {name: self.chance.choice(WIDER[self.columns[name]]) for name in kept
                 if self.columns[name] in WIDER and self.chance.random() < 0.3}  # fmt: skip
        self.columns = {
            rename.get(name, name): widen.get(name, kind) for name, kind in self.columns.items() if name not in drop
        }
        rows = {
            key: {rename.get(name, name): it for name, it in row.items() if name not in drop}
            for key, row in self.rows.items()
        }
        add = {}
        for _ in range(self.chance.choice([0, 1, 2])):
            add[self.fresh()] = self.chance.choice(KINDS)
            self.columns |= add
        defaults = {
            name: found
            for name, kind in add.items()
            if (found := value(self.chance, kind)) is not None and self.chance.random() < 0.6
        }
        self.rows = {key: {**row, **{name: defaults.get(name) for name in add}} for key, row in rows.items()}
        return {"drop": drop, "rename": rename, "widen": widen, "add": add, "defaults": defaults}

    def step(self) -> None:
        change, relation = self.chance.choice(CHANGES), self.relation
        keys = self.chance.sample(range(80), self.chance.randrange(1, 12))
        if self.history:  # all versions of a key are replaced together
            keys = sorted({*keys, *(number ^ 1 for number in keys)})
        if change == "evolve":
            before = self.columns, self.rows
            changes = self.evolve()
            if not any(changes.values()):
                return
            try:
                relation.evolve(**changes)
            except RelationBuildError as error:  # rows of a few bytes would become far longer
                if "may need" not in str(error):
                    raise
                self.columns, self.rows = before
                relation.compact()
        elif change == "delete":
            relation.delete(self.keys(keys))
            self.rows = {key: row for key, row in self.rows.items() if key not in keys}
        elif change == "compact":
            relation.compact()
        elif change == "index":
            self.change_index()
        elif change == "rebuild":
            self.relation = Relation.build(self.table(self.rows), relation.place, overwrite=True, **self.options)
            self.indexed = None
        else:
            if change == "upsert and evolve":
                name = self.fresh()
                self.columns[name] = self.chance.choice(KINDS)
                self.rows = {key: {**row, name: None} for key, row in self.rows.items()}
            some = self.some(keys)
            relation.upsert(self.table(some), evolve=change != "upsert")
            self.rows = {**self.rows, **some}
        self.versions[self.relation.version] = self.schema, self.rows

    def change_index(self) -> None:
        possible = [name for name, kind in self.columns.items() if name not in self.fixed and kind in INDEXABLE]
        if self.indexed is not None:
            self.relation.drop_index(self.indexed)
            self.indexed = None
        elif possible and not self.history:
            self.indexed = self.chance.choice(possible)
            self.relation.add_index(self.indexed)

    def rows_in(self, table: pa.Table) -> dict[int, dict[str, Any]]:
        """Return the rows of a table by their number."""
        number = {tuple(self.key(number).values()): number for number in range(80)}
        found = {number[tuple(row[name] for name in self.fixed)]: row for row in table.to_pylist()}
        assert len(found) == table.num_rows
        return found

    def check(self) -> None:
        relation = self.relation
        assert relation.schema.equals(self.schema)
        assert self.rows_in(relation.to_table()) == self.rows
        if self.indexed is not None:
            with relation.by(self.indexed) as index:
                there = {number: row for number, row in self.rows.items() if row[self.indexed] is not None}
                assert self.rows_in(index.to_table().select(self.schema.names)) == there
        if self.history:
            return
        wanted = self.chance.sample(range(80), 20)
        found = relation.lookup(self.keys(wanted), found="found").to_pylist()
        names = [name for name in self.columns if name not in self.fixed]
        for number, row in zip(wanted, found, strict=True):
            there = self.rows.get(number, {})
            assert row == {**{name: there.get(name) for name in names}, "found": number in self.rows}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(7))
def test_random_changes_against_a_dictionary(seed: int, tmp_path: Path) -> None:
    random_changes(seed, tmp_path, 25)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 170))
def test_many_random_changes_against_a_dictionary(seed: int, tmp_path: Path) -> None:
    random_changes(seed, tmp_path, 60)


def random_changes(seed: int, path: Path, steps: int) -> None:
    model = Model(path / "r", seed)
    for _ in range(steps):
        model.step()
        model.check()
    assert not list(find_faults(model.relation))
    for version, (schema, rows) in model.versions.items():
        with Relation.open(path / "r", version=version) as old:
            assert old.schema.equals(schema)
            assert model.rows_in(old.to_table()) == rows
    semistream.vacuum(path / "r", older_than=-1)
    model.check()
