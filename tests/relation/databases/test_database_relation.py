"""R left in a real database: the same rows as a relation of files, through every kind of join."""

from __future__ import annotations

import datetime
import sqlite3
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import KeyTypeError
from semistream.relation.databases import Database, DatabaseError, open_database, relation_in_database
from semistream.relation.devices.device import DeviceError
from servers import Server

TABLE = 'products "%" {0}'
ROWS = [
    # Keys with gaps, some repeated, one of them often; text of any length, NULL now and then.
    (key * 3 - 500, "ünï%" * (key % 9) if key % 7 else None, key / 4)
    for key in range(1200)
    for _ in range(40 if key == 600 else 1 + (key % 11 == 0))
]


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    sqlite3.connect(tmp_path / "r.db").close()
    return open_database(f"sqlite://{tmp_path / 'r.db'}")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    found = request.getfixturevalue(request.param)
    return open_database(found.url, found.password) if isinstance(found, Server) else found


def fill(database: Database, rows: list[tuple[Any, ...]], kind: str = "BIGINT", table: str = TABLE) -> None:
    kinds = {"mariadb": ("LONGTEXT CHARACTER SET utf8mb4", "%s"), "postgresql": ("TEXT", "$"), "sqlite": ("TEXT", "?")}
    text, sign = kinds[database.address.kind]
    name = database.quoted(table)
    with database.connect() as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute(f"CREATE TABLE {name} (id {kind}, label {text}, price DOUBLE PRECISION)")
            signs = ", ".join(f"${number}" if sign == "$" else sign for number in (1, 2, 3))
            escaped = name.replace("%", "%%") if sign == "%s" else name
            cursor.executemany(f"INSERT INTO {escaped} VALUES ({signs})", rows)
        connection.commit()


def counted(table: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in table.to_pylist())


@pytest.mark.sampled
def test_relation_holds_the_tables_rows(database: Database) -> None:
    fill(database, [*ROWS, (None, "no key", 0.0)])
    with relation_in_database(database, TABLE, "id", page_size=4096) as relation:
        assert relation.row_count == len(ROWS)
        assert not relation.unique
        assert relation.page_count > 10
        found = relation.to_table()
        assert found.schema == pa.schema({"id": pa.int64(), "label": pa.string(), "price": pa.float64()})
        assert counted(found) == Counter(repr(dict(zip(found.schema.names, row, strict=True))) for row in ROWS)
        assert found["id"].to_pylist() == sorted(row[0] for row in ROWS)
        # Any pages, in any order and repeatedly.
        pages = np.array([5, 3, 4, 3, relation.page_count - 1, 0])
        frames = relation.frames(pages.size)
        relation.read(pages, frames)
        assert frames[:, 8:12].view(np.uint32).ravel().tolist() == pages.tolist()
        assert (frames[1] == frames[3]).all()
        assert relation.device.profile.seek_seconds > 0
        with pytest.raises(IndexError, match="page 9999"):
            relation.read(np.array([9999]), frames)
    with pytest.raises(DeviceError, match="closed"):
        relation.read(np.array([0]), frames)


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", ["inlj", "hybridjoin", "cachejoin", "meshjoin", "ssij"])
def test_joins_are_those_of_the_oracle(database: Database, algorithm: str, tmp_path: Path) -> None:
    if algorithm not in semistream.algorithms():
        pytest.skip(f"{algorithm} is not there yet")
    fill(database, ROWS)
    keys = np.random.default_rng(1).integers(-600, 3300, 3000)
    stream = pa.table({"id": pa.array(keys, mask=keys % 13 == 0), "sale": np.arange(keys.size)})
    table = pa.table(
        {"id": [row[0] for row in ROWS], "label": [row[1] for row in ROWS], "price": [row[2] for row in ROWS]}
    )
    with semistream.Relation.build(table, tmp_path / "r", key="id") as plain:
        oracle = semistream.create("oracle", plain, on="id", how="left", memory="64MB")
        expected = counted(pa.Table.from_batches(list(oracle.process(stream.to_batches(500)))))
    with relation_in_database(database, TABLE, "id", page_size=4096) as relation:
        join = semistream.create(algorithm, relation, on="id", how="left", memory=400_000)
        found = counted(pa.Table.from_batches(list(join.process(stream.to_batches(500)))))
        assert found == expected
        assert join.stats.pages_read > 0


DAY = datetime.date(2024, 1, 1)
MOMENT = datetime.datetime(2024, 1, 1, 12, 30, 0, 5)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("INTEGER", [-5, 0, 7]),
        ("DATE", [DAY + datetime.timedelta(days=n) for n in range(900)]),
        ("TIMESTAMP", [MOMENT + datetime.timedelta(hours=n) for n in range(900)]),
        ("NUMERIC(10,2)", [Decimal(n) / 4 for n in range(-400, 500)]),
    ],
)
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_keys_of_other_types(request: pytest.FixtureRequest, server: str, kind: str, keys: list[Any]) -> None:
    found: Server = request.getfixturevalue(server)
    database = open_database(found.url, found.password)
    mapped = "DATETIME(6)" if (kind, server) == ("TIMESTAMP", "mariadb") else kind
    fill(database, [(key, "x" * 20, 0.5) for key in keys], mapped, "keyed")
    with relation_in_database(database, "keyed", "id", columns=["label"], page_size=4096) as relation:
        assert relation.unique
        assert relation.to_table()["id"].to_pylist() == keys
        assert relation.schema.names == ["id", "label"]


def test_what_cannot_be_a_page_or_a_key_is_said(database: Database) -> None:
    fill(database, [(1, "x" * 9000, 0.0)])
    with pytest.raises(DatabaseError, match="page_size of at least 9,728 B"):
        relation_in_database(database, TABLE, "id")
    with relation_in_database(database, TABLE, "id", page_size=9728) as relation:
        assert relation.to_table().num_rows == 1
    with pytest.raises(KeyTypeError, match="build a relation"):
        relation_in_database(database, TABLE, "label")


def test_rows_added_since(database: Database) -> None:
    fill(database, [(key, "x" * 50, 0.0) for key in range(0, 1000, 2)])
    with relation_in_database(database, TABLE, "id", page_size=4096) as relation:
        with database.connect() as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {database.quoted(TABLE)} VALUES (501, 'new', 1)")
            connection.commit()
        assert 501 in relation.to_table()["id"].to_pylist()
        with database.connect() as connection:
            with connection.cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {database.quoted(TABLE)} SELECT id + 1, label, 0 FROM {database.quoted(TABLE)}"
                )
            connection.commit()
        with pytest.raises(DeviceError, match=r"rows were added to products .* open it again"):
            relation.to_table()


def test_empty_table_is_an_empty_relation(database: Database) -> None:
    fill(database, [])
    with relation_in_database(database, TABLE, "id") as relation:
        assert (relation.row_count, relation.page_count) == (0, 0)
        join = semistream.create("inlj", relation, on="id", how="left", memory="1MB")
        stream = pa.table({"id": [1, 2]})
        assert pa.Table.from_batches(list(join.process(stream.to_batches())))["label"].to_pylist() == [None, None]
