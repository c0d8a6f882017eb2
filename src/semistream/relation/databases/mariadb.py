"""MariaDB and MySQL through PyMySQL. There is no published Arrow driver for them, so rows become columns here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pymysql
import pymysql.cursors

from semistream.relation.databases.address import DatabaseError
from semistream.relation.databases.database import VALUE, Database, TableName, unsupported

__all__ = ["MariaDB"]

_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "bigint": 64}
_COLUMNS = """
    SELECT column_name, data_type, column_type, numeric_precision, numeric_scale
    FROM information_schema.columns
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
    ORDER BY ordinal_position
"""
_KEY_CHARACTERS = 255  # maximum characters of a text key column
_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.uint8(): "TINYINT UNSIGNED", pa.uint16(): "SMALLINT UNSIGNED", pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED", pa.float16(): "FLOAT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
    pa.date32(): "DATE", pa.date64(): "DATE",
}  # fmt: skip


class MariaDB(Database):
    """A MariaDB or MySQL database. Instants are written and read as UTC."""

    quote = "`"

    def connect(self, *, streaming: bool = False) -> AbstractContextManager[Any]:
        where = self.address
        try:
            connection: AbstractContextManager[Any] = pymysql.connect(
                host=where.host, port=where.port, user=where.user, password=where.password or "",
                database=where.database, charset="utf8mb4", autocommit=False,
                # The server rejects values that do not fit instead of truncating them, and quotes identifiers and text
                # differently.
                init_command="SET time_zone = '+00:00', sql_mode = 'TRADITIONAL'",
                cursorclass=pymysql.cursors.SSCursor if streaming else pymysql.cursors.Cursor,
            )  # fmt: skip
        except pymysql.Error as error:
            raise DatabaseError(f"cannot connect to {where}: {error.args[-1]}") from None
        return connection

    def schema(self, table: str | TableName) -> pa.Schema:
        table = TableName.parse(table)
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(_COLUMNS, (table.schema, table.name))
            columns = cursor.fetchall()
        if not columns:
            raise self.no_such_table(table)
        return pa.schema([pa.field(column[0], _arrow_type(*column[1:])) for column in columns])

    def batches(
        self, table: str | TableName, columns: Sequence[str], schema: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        # A server-side cursor; the other kind would hold the whole table in memory here.
        with self.connect(streaming=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {self.listed(columns)} FROM {self.quoted(TableName.parse(table))}")
            while rows := cursor.fetchmany(batch_rows):
                yield as_batch(rows, schema)

    def select(
        self, connection: Any, statements: Sequence[str], values: pa.Array | None, schema: pa.Schema
    ) -> pa.RecordBatch:
        text = " UNION ALL ".join(statements)
        with connection.cursor() as cursor:
            if values is None:
                cursor.execute(text)
            else:
                cursor.execute(text.replace("%", "%%").replace(VALUE, "%s"), [_plain(value) for value in values])
            rows = cursor.fetchall()
        connection.commit()
        return as_batch(rows, schema)

    def byte_length(self, field: pa.Field) -> str:
        name = self.quoted(field.name)
        if pa.types.is_string(field.type):
            return f"COALESCE(LENGTH(CONVERT({name} USING utf8mb4)), 0)"
        return f"COALESCE(LENGTH({name}), 0)"

    def whole(self, expression: str) -> str:
        return f"CAST({expression} AS SIGNED)"

    def quotient(self, expression: str, divisor: int) -> str:
        return f"({expression}) DIV {divisor}"

    def column_type(self, field: pa.Field, *, key: bool = False) -> str:
        kind = field.type
        if found := _TYPES.get(kind):
            return found
        if pa.types.is_decimal(kind):
            return f"DECIMAL({kind.precision},{kind.scale})"
        if pa.types.is_timestamp(kind):
            return "DATETIME(6)"
        if pa.types.is_time(kind):
            return "TIME(6)"
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            # Compare bytes: in the server's default collation, 'a' and 'A' are the same key.
            text = f"VARCHAR({_KEY_CHARACTERS})" if key else "LONGTEXT"
            return f"{text} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return "VARBINARY(767)" if key else "LONGBLOB"
        if pa.types.is_dictionary(kind):
            return self.column_type(pa.field(field.name, kind.value_type), key=key)
        raise unsupported("MariaDB", field)


def as_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a batch."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [_column(values, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        # The server accepts dates such as 0000-00-00, which the driver returns as text.
        raise DatabaseError(f"column {field.name!r} has a value that is not a {field.type}: {error}") from None


def _plain(value: pa.Scalar) -> Any:
    """Return a value in the form that the driver needs. The connection's time zone is UTC."""
    plain = value.as_py()
    return plain.replace(tzinfo=None) if pa.types.is_timestamp(value.type) else plain


def _arrow_type(data_type: str, column_type: str, precision: int | None, scale: int | None) -> pa.DataType:
    name = data_type.lower()
    if bits := _INTEGERS.get(name):
        return pa.type_for_alias(f"{'uint' if 'unsigned' in column_type.lower() else 'int'}{bits}")
    if name == "decimal" and precision is not None and scale is not None:
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    # Single precision would be enough for float, but the server sends it as text with few digits; double keeps them.
    plain = {
        "float": pa.float64(), "double": pa.float64(), "date": pa.date32(), "datetime": pa.timestamp("us"),
        "timestamp": pa.timestamp("us", tz="UTC"), "time": pa.duration("us"), "year": pa.int16(),
    }  # fmt: skip
    if name in plain:
        return plain[name]
    binary = "blob" in name or "binary" in name or name == "bit"
    return pa.binary() if binary else pa.string()
