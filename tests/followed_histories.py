"""Random histories of Delta and Iceberg tables, and a relation that must equal the table at every commit."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.relation.followed.follower import Follower, Step
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import followed_commit

KEYS = 300
OPTIONS = {"page_size": 512, "memory": "1MB"}
Rows = list[tuple[Any, ...]]


def rows_of(table: pa.Table) -> Rows:
    """Return rows, sorted, with columns in the order of their names: equal tables have equal rows."""
    names = sorted(table.column_names)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


class History(ABC):
    """A table that changes at random. Each change may be several commits."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.columns: dict[str, pa.DataType] = {"id": pa.int64(), "name": pa.string(), "price": pa.float64()}
        self.added = 0
        self.compactions: list[str] = []
        """Commits that change no row."""
        self.create(self.some(self.chance.sample(range(KEYS), 60)))

    @abstractmethod
    def create(self, rows: pa.Table) -> None: ...

    @abstractmethod
    def follower(self, path: Path, **options: Any) -> Follower: ...

    @abstractmethod
    def at(self, commit: str) -> pa.Table:
        """Return the table at a commit, read by its own library."""

    @property
    @abstractmethod
    def changes(self) -> list[Callable[[], None]]: ...

    def now(self) -> pa.Table:
        return self.at(self.follower(self.root / "unused", key="id").source.newest().name)

    def some(self, keys: list[int]) -> pa.Table:
        """Return rows with these keys and random values."""
        made: dict[str, list[Any]] = {}
        for name, kind in self.columns.items():
            if name == "id":
                made[name] = keys
            elif pa.types.is_string(kind):
                made[name] = [self.chance.choice([None, "", "x" * self.chance.randrange(40), "ä"]) for _ in keys]
            elif pa.types.is_floating(kind):
                made[name] = [self.chance.choice([None, 0.0, float(self.chance.randrange(1000)) / 8]) for _ in keys]
            else:
                made[name] = [self.chance.choice([None, self.chance.randrange(1000)]) for _ in keys]
        return pa.table(made, schema=pa.schema(list(self.columns.items())))

    def known(self) -> list[int]:
        return self.now()["id"].to_pylist()

    def fresh(self) -> list[int]:
        left = sorted(set(range(KEYS)) - set(self.known()))
        return self.chance.sample(left, min(len(left), self.chance.randrange(1, 20)))

    def few(self) -> list[int]:
        known = sorted(self.known())
        if self.chance.random() < 0.5:  # adjacent keys
            begin = self.chance.randrange(len(known) + 1)
            return known[begin : begin + self.chance.randrange(1, 12)]
        return self.chance.sample(known, min(len(known), self.chance.randrange(1, 12)))

    def go(self) -> str:
        change = self.chance.choice(self.changes)
        change()
        return change.__name__


class DeltaHistory(History):
    def __init__(self, root: Path, seed: int) -> None:
        self.path = str(root / "table")
        super().__init__(root, seed)

    def create(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        self.partitioned = self.chance.random() < 0.3
        if self.partitioned:
            self.columns["part"] = pa.int32()
            rows = rows.append_column("part", pa.array([key % 3 for key in rows["id"].to_pylist()], pa.int32()))
        write_deltalake(
            self.path, rows, partition_by=["part"] if self.partitioned else None,
            configuration={"delta.enableChangeDataFeed": self.chance.choice(["true", "false"])},
        )  # fmt: skip

    def table(self, version: int | None = None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.path, version=version)

    def follower(self, path: Path, **options: Any) -> Follower:
        return Follower(self.path, path, **options)

    def at(self, commit: str) -> pa.Table:
        table = self.table(int(commit))
        return pa.table(table.scan()).select(pa.schema(table.schema()).names).cast(pa.schema(table.schema()))

    @property
    def changes(self) -> list[Callable[[], None]]:
        return [self.append, self.merge, self.delete, self.overwrite, self.optimize, self.add_column, self.retype]

    def append(self) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.path, self.some(self.fresh()), mode="append")

    def merge(self) -> None:
        rows = self.some(list({*self.few(), *self.fresh()}))
        merged = self.table().merge(rows, predicate="s.id = t.id", source_alias="s", target_alias="t")
        if self.chance.random() < 0.3 and "price" in self.columns:
            merged.when_matched_delete("s.price is null").when_not_matched_insert_all().execute()
        else:
            merged.when_matched_update_all().when_not_matched_insert_all().execute()

    def delete(self) -> None:
        keys = self.few()
        if keys:
            self.table().delete(f"id in ({', '.join(map(str, keys))})")

    def overwrite(self) -> None:
        from deltalake import write_deltalake

        keep = self.now()
        if self.chance.random() < 0.5:  # most rows are the same
            gone = self.few()
            keep = keep.filter(pa.array([key not in gone for key in keep["id"].to_pylist()], pa.bool_()))
            rows = pa.concat_tables([keep.cast(pa.schema(list(self.columns.items()))), self.some(self.fresh())])
        else:
            rows = self.some(self.chance.sample(range(KEYS), 50))
        write_deltalake(self.path, rows, mode="overwrite")

    def optimize(self) -> None:
        before = self.table().version()
        self.table().optimize.compact()
        if (made := self.table().version()) != before:
            self.compactions.append(str(made))

    def add_column(self) -> None:
        from deltalake import write_deltalake

        self.added += 1
        self.columns[f"c{self.added}"] = self.chance.choice([pa.int32(), pa.string(), pa.float32()])
        write_deltalake(self.path, self.some(self.fresh()), mode="append", schema_mode="merge")

    def retype(self) -> None:
        """Replace everything: other types, and columns that are dropped."""
        from deltalake import write_deltalake

        names = [name for name in self.columns if name not in ("id", "part")]
        for name in names:
            if self.chance.random() < 0.3:
                self.columns[name] = self.chance.choice([pa.int64(), pa.string(), pa.float64()])
            elif self.chance.random() < 0.2:
                del self.columns[name]
        rows = self.some(self.chance.sample(range(KEYS), 50))
        write_deltalake(
            self.path, rows, mode="overwrite", schema_mode="overwrite",
            partition_by=["part"] if self.partitioned else None,
        )  # fmt: skip


class IcebergHistory(History):
    def create(self, rows: pa.Table) -> None:
        from pyiceberg.catalog import load_catalog

        (self.root / "warehouse").mkdir(parents=True, exist_ok=True)
        self.options = {
            "type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/warehouse",
        }  # fmt: skip
        self.catalog = load_catalog("test", **self.options)
        self.catalog.create_namespace("shop")
        merged = self.chance.choice(["true", "false"])  # manifests of several snapshots become one
        self.table = self.catalog.create_table(
            "shop.products", schema=rows.schema,
            properties={"commit.manifest-merge.enabled": merged, "commit.manifest.min-count-to-merge": "3"},
        )  # fmt: skip
        self.table.append(rows)

    def follower(self, path: Path, **options: Any) -> Follower:
        return Follower("shop.products", path, catalog="test", options=self.options, **options)

    def at(self, commit: str) -> pa.Table:
        self.table.refresh()
        found = self.table.scan(snapshot_id=int(commit)).to_arrow()
        return found.cast(pa.schema([(field.name, _small(field.type)) for field in found.schema]))

    @property
    def changes(self) -> list[Callable[[], None]]:
        return [
            self.append, self.upsert, self.delete, self.overwrite, self.compact, self.add_column, self.drop_column,
            self.rename_column, self.widen_column, self.replace_column,
        ]  # fmt: skip

    def append(self) -> None:
        self.table.append(self.some(self.fresh()))

    def upsert(self) -> None:
        keys = list({*self.few(), *self.fresh()})
        if keys:
            self.table.upsert(self.some(keys), join_cols=["id"])

    def delete(self) -> None:
        from pyiceberg.expressions import In

        if keys := self.few():
            self.table.delete(In("id", keys))

    def compact(self) -> None:
        """Move the rows of some files, or of none, to one or two others."""
        from iceberg_writing import compact_files, files_of

        files = files_of(self.table)
        some = self.chance.sample(files, self.chance.randrange(len(files) + 1))
        compact_files(self.table, some, self.chance.choice([1, 2]))
        self.compactions.append(str(self.table.current_snapshot().snapshot_id))

    def overwrite(self) -> None:
        self.table.overwrite(self.some(self.chance.sample(range(KEYS), 50)))

    def add_column(self) -> None:
        from pyiceberg.types import FloatType, IntegerType, StringType

        self.added += 1
        kind, iceberg = self.chance.choice(
            [(pa.int32(), IntegerType()), (pa.string(), StringType()), (pa.float32(), FloatType())]
        )
        with self.table.update_schema() as update:
            update.add_column(f"c{self.added}", iceberg)
        self.columns[f"c{self.added}"] = kind
        self.append()

    def drop_column(self) -> None:
        names = [name for name in self.columns if name != "id"]
        if len(names) > 1:
            name = self.chance.choice(names)
            with self.table.update_schema() as update:
                update.delete_column(name)
            del self.columns[name]
            self.append()

    def replace_column(self) -> None:
        """Drop a column and add another one with its name and type: rows that stay have NULL in it."""
        names = [name for name in self.columns if name != "id"]
        if names:
            name = self.chance.choice(names)
            kind = self.table.schema().find_type(name)
            with self.table.update_schema() as update:
                update.delete_column(name)
            with self.table.update_schema() as update:
                update.add_column(name, kind)
            self.columns[name] = self.columns.pop(name)
            self.append()

    def rename_column(self) -> None:
        names = [name for name in self.columns if name != "id"]
        if names:
            name, self.added = self.chance.choice(names), self.added + 1
            with self.table.update_schema() as update:
                update.rename_column(name, f"r{self.added}")
            self.columns = {f"r{self.added}" if one == name else one: kind for one, kind in self.columns.items()}
            self.append()

    def widen_column(self) -> None:
        from pyiceberg.types import DoubleType, LongType

        wider = {pa.int32(): (pa.int64(), LongType()), pa.float32(): (pa.float64(), DoubleType())}
        names = [name for name, kind in self.columns.items() if kind in wider]
        if names:
            name = self.chance.choice(names)
            kind, iceberg = wider[self.columns[name]]
            with self.table.update_schema() as update:
                update.update_column(name, iceberg)
            self.columns[name] = kind
            self.append()


def _small(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_large_string(kind) else kind


HISTORIES: dict[str, type[History]] = {"delta": DeltaHistory, "iceberg": IcebergHistory}


def check_versions(history: History, path: Path, seen: set[int]) -> None:
    """Assert that each version of R that was not seen before equals the commit that its manifest names."""
    for number in sorted(set(manifests.versions(path)) - seen):
        with Relation.open(path, version=number) as relation:
            followed = followed_commit(relation.stored.properties)
            assert followed is not None
            assert followed.version == number
            there, here = history.at(followed.commit), relation.to_table()
            assert sorted(here.column_names) == sorted(there.column_names), f"version {number}"
            assert rows_of(here) == rows_of(there), f"version {number}, commit {followed.commit}"
            assert relation.row_count == there.num_rows
            assert relation.unique
        seen.add(number)


def followed(follower: Follower) -> list[Step]:
    steps = []
    while (step := follower.step()) is not None:
        steps.append(step)
    return steps


def run_history(root: Path, kind: str, seed: int, changes: int = 6) -> tuple[list[str], list[Step]]:
    """Make a random history, follow it at random moments, and compare every version; return what happened."""
    history, path = HISTORIES[kind](root, seed), root / "relation"
    options = {**OPTIONS, "shards": history.chance.choice([1, 3]), "fill": history.chance.choice([0.7, 1.0])}
    done: list[str] = []
    steps: list[Step] = []
    seen: set[int] = set()
    for number in range(changes + 1):
        if number:
            done.append(history.go())
        if history.chance.random() < 0.7 or number == changes:
            steps += followed(history.follower(path, key="id", **options))
            check_versions(history, path, seen)
    commits = [step.commit for step in steps]
    assert len(set(commits)) == len(commits), "a commit was applied twice"
    wanted = history.follower(path).source.commits_after(commits[0])
    assert commits[1:] == [commit.name for commit in wanted], "a commit was left out"
    for step in steps[1:]:
        if step.commit in history.compactions:
            assert (step.operation, step.upserted, step.deleted, step.bytes_written) == ("follow", 0, 0, 0)
    return done, steps
