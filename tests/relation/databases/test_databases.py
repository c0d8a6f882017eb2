"""Tables in real databases, read as Arrow, and made into relations by the command line."""

from __future__ import annotations

import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from semistream import Relation
from semistream.cli import app
from semistream.relation.databases import Database, DatabaseError, TableName, open_database
from semistream.relation.delta_table import DeltaReadError, delta_reader
from servers import Server

DAY = datetime.date(2024, 2, 29)
NAME = 'it\'s \\ "%s" `ü` 🙂'


def execute(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    path = tmp_path / "r.db"
    sqlite3.connect(path).close()
    return open_database(f"sqlite://{path}")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    found = request.getfixturevalue(request.param)
    return open_database(found.url, found.password) if isinstance(found, Server) else found


def numbers(database: Database, rows: int) -> str:
    """Make a table of so many rows, and return its name, which is a hard one."""
    name = f'pro"du`cts % {rows}'
    table = database.quoted(name)
    series = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
    columns = "i, CASE WHEN i % 3 = 0 THEN NULL ELSE i * 0.5 END"
    limit = "SET STATEMENT max_recursive_iterations = 1000000 FOR " if database.address.kind == "mariadb" else ""
    insert = f"INSERT INTO {table} {series} SELECT {columns} FROM n"
    if database.address.kind == "sqlite":
        insert = f"{series} INSERT INTO {table} SELECT {columns} FROM n"
    execute(
        database,
        f"DROP TABLE IF EXISTS {table}",
        f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, {database.quoted('ha`lf')} DOUBLE PRECISION)",
        limit + insert,
    )
    return name


def test_rows_come_in_batches(database: Database) -> None:
    table = numbers(database, 2500)
    reader = database.reader(table, batch_rows=1000)
    assert reader.schema == pa.schema({"id": pa.int64(), "ha`lf": pa.float64()})
    batches = list(reader)
    assert max(batch.num_rows for batch in batches) <= 1000
    rows = pa.Table.from_batches(batches).sort_by("id").to_pydict()
    assert rows["id"] == list(range(1, 2501))
    assert rows["ha`lf"] == [None if i % 3 == 0 else i / 2 for i in range(1, 2501)]
    assert database.reader(table, iter(["ha`lf"])).read_all().schema.names == ["ha`lf"]


def test_a_missing_table_and_column_are_named(database: Database) -> None:
    with pytest.raises(DatabaseError, match="there is no table nothing in") as failure:
        database.reader("nothing")
    assert database.address.password is None or database.address.password not in str(failure.value)
    with pytest.raises(DatabaseError, match="no column 'price'; its columns are id, ha`lf"):
        database.reader(numbers(database, 3), ["price"])


def test_empty_table_has_its_columns(database: Database) -> None:
    table = numbers(database, 3)
    execute(database, f"DELETE FROM {database.quoted(table)}")
    assert database.reader(table).read_all().schema.names == ["id", "ha`lf"]
    assert database.reader(table).read_all().num_rows == 0


def test_postgresql_types(postgresql: Server) -> None:
    database = open_database(postgresql.url, postgresql.password)
    execute(
        database,
        "CREATE SCHEMA other",
        "CREATE TABLE other.kinds (i smallint, n numeric(12,3), w numeric, t text, c char(4), d date, "
        "z timestamptz, s timestamp, b boolean, x bytea, u uuid, j jsonb, a integer[])",
        "INSERT INTO other.kinds VALUES (7, 1.5, 123456789.123456789, 'x', 'ab', '2024-02-29', "
        "'2024-02-29 12:00+02', '2024-02-29 12:00', true, '\\x00ff', '00000000-0000-0000-0000-000000000001', "
        "'{\"a\": 1}', '{1,2}'), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    rows = database.reader("other.kinds").read_all()
    assert rows.schema.field("n").type == pa.decimal128(12, 3)
    assert rows.to_pylist()[0] == {
        "i": 7, "n": Decimal("1.500"), "w": "123456789.123456789", "t": "x", "c": "ab  ", "d": DAY,
        "z": datetime.datetime(2024, 2, 29, 10, tzinfo=datetime.UTC), "s": datetime.datetime(2024, 2, 29, 12),
        "b": True, "x": b"\x00\xff", "u": (1).to_bytes(16), "j": '{"a": 1}', "a": [1, 2],
    }  # fmt: skip
    assert set(rows.to_pylist()[1].values()) == {None}


def test_mariadb_types(mariadb: Server) -> None:
    database = open_database(mariadb.url, mariadb.password)
    execute(
        database,
        "CREATE TABLE kinds (i tinyint, u bigint unsigned, n decimal(12,3), w decimal(50,2), t varchar(50), d date, "
        "z timestamp(6) NULL, s datetime(6), x varbinary(9), f float, e enum('a','b'), j json, k time, y year) "
        "CHARACTER SET utf8mb4",
        "INSERT INTO kinds VALUES (-7, 18446744073709551615, 1.5, 1e40, NULL, '2024-02-29', "
        "'2024-02-29 12:00:00.000001', '2024-02-29 12:00', x'00ff', 0.25, 'b', '[1]', '27:00:01', 2024)",
        "INSERT INTO kinds VALUES (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    with database.connect() as connection:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE kinds SET t = %s WHERE i = -7", (NAME,))
        connection.commit()
    rows = database.reader("kinds").read_all()
    assert rows.schema.field("n").type == pa.decimal128(12, 3)
    assert rows.to_pylist()[0] == {
        "i": -7, "u": 2**64 - 1, "n": Decimal("1.500"), "w": Decimal("1e40"), "t": NAME, "d": DAY,
        "z": datetime.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=datetime.UTC),
        "s": datetime.datetime(2024, 2, 29, 12), "x": b"\x00\xff", "f": 0.25, "e": "b", "j": "[1]",
        "k": datetime.timedelta(hours=27, seconds=1), "y": 2024,
    }  # fmt: skip
    assert set(rows.to_pylist()[1].values()) == {None}


def test_sqlite_types_are_those_declared_or_stored(sqlite: Database) -> None:
    execute(
        sqlite,
        "CREATE TABLE kinds (i INTEGER, t VARCHAR(9), r DOUBLE, b BLOB, day DATE, n NUMERIC, empty DATE)",
        "INSERT INTO kinds VALUES (1, 'x', 2, x'00ff', '2024-02-29', 5, NULL)",
    )
    rows = sqlite.reader("kinds").read_all()
    assert rows.to_pylist() == [
        {"i": 1, "t": "x", "r": 2.0, "b": b"\x00\xff", "day": "2024-02-29", "n": 5, "empty": None}
    ]
    execute(sqlite, "INSERT INTO kinds (i) VALUES ('seven')")
    with pytest.raises(DatabaseError, match="not of its column's type"):
        sqlite.reader("kinds").read_all()
    with pytest.raises(DatabaseError, match="there is no file"):
        open_database("sqlite:///nowhere/at.all").reader("kinds")


def test_names_are_quoted_or_refused(sqlite: Database) -> None:
    assert sqlite.quoted(TableName('a"; DROP TABLE b', "s")) == '"s"."a""; DROP TABLE b"'
    for name in ("", "a\0b"):
        with pytest.raises(DatabaseError, match="cannot be the name"):
            sqlite.quoted(name)
    with pytest.raises(DatabaseError, match="not the name of a table"):
        TableName.parse("schema.")


def build(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["build", *(str(part) for part in arguments)], env={"COLUMNS": "160"})


def test_relation_built_from_a_database(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = numbers(database, 2500)
    for variable in ("PGPASSWORD", "MYSQL_PWD"):
        monkeypatch.setenv(variable, database.address.password or "")
    outcome = build(str(database.address), tmp_path / "r", "--key", "id", "--table", table)
    assert outcome.exit_code == 0, outcome.output
    assert not database.address.password or database.address.password not in outcome.output
    with Relation.open(tmp_path / "r") as relation:
        assert relation.to_table().sort_by("id")["id"].to_pylist() == list(range(1, 2501))
    with pytest.raises(ValueError, match="--table NAME"):
        raise build(str(database.address), tmp_path / "s", "--key", "id").exception


def test_relation_built_from_a_delta_table(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    rows = pa.table({"id": range(1000), "name": [f"n{i}" for i in range(1000)], "part": [i % 3 for i in range(1000)]})
    deltalake.write_deltalake(tmp_path / "t", rows, partition_by=["part"])
    deltalake.DeltaTable(tmp_path / "t").delete("id >= 990")
    assert build(tmp_path / "t", tmp_path / "r", "-k", "id", "-c", "id", "-c", "part").exit_code == 0
    with Relation.open(tmp_path / "r") as relation:
        found = relation.to_table().sort_by("id").to_pydict()
    assert found == {"id": list(range(990)), "part": [i % 3 for i in range(990)]}
    assert delta_reader(tmp_path / "t", version=0).read_all().num_rows == 1000
    assert delta_reader(tmp_path / "t", iter(["part", "id"])).read_all().schema.names == ["part", "id"]
    with pytest.raises(DeltaReadError, match="version 9"):
        delta_reader(tmp_path / "t", version=9)
    with pytest.raises(DeltaReadError, match="no column 'nome'; its columns are id, name, part"):
        delta_reader(tmp_path / "t", ["nome"])
