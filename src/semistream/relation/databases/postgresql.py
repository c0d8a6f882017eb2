"""PostgreSQL through ADBC: rows are streamed as Arrow batches by binary COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as driver
import pyarrow as pa

from semistream.relation.databases.address import DatabaseError
from semistream.relation.databases.database import VALUE, Database, TableName, one_row, unsupported
from semistream.relation.keys.key_columns import is_text
from semistream.relation.rows.fitting import one_batch

__all__ = ["PostgreSQL"]

_NUMERIC = "POSTGRESQL:typmod"
_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint",
    pa.uint8(): "smallint", pa.uint16(): "integer", pa.uint32(): "bigint", pa.uint64(): "numeric(20,0)",
    pa.float16(): "real", pa.float32(): "real", pa.float64(): "double precision",
    pa.date32(): "date", pa.date64(): "date",
}  # fmt: skip


class PostgreSQL(Database):
    """A PostgreSQL database."""

    def connect(self) -> AbstractContextManager[Any]:
        where = self.address
        # The driver passes the address to libpq and does not keep it, so its messages never contain the password.
        secret = f":{quote(where.password, safe='')}" if where.password else ""
        user = f"{quote(where.user, safe='')}{secret}@" if where.user else ""
        host = f"[{where.host}]" if ":" in where.host else where.host
        try:
            connection: AbstractContextManager[Any] = driver.connect(
                f"postgresql://{user}{host}:{where.port}/{quote(where.database, safe='')}"
            )
        except adbc_driver_manager.Error as error:
            raise DatabaseError(f"cannot connect to {where}: {_first_line(error)}") from None
        return connection

    def schema(self, table: str | TableName) -> pa.Schema:
        table = TableName.parse(table)
        with self.connect() as connection, connection.cursor() as cursor:
            try:
                cursor.execute(f"SELECT * FROM {self.quoted(table)} LIMIT 0")
            except adbc_driver_manager.Error:
                raise self.no_such_table(table) from None
            found = cursor.fetch_arrow_table().schema
        return pa.schema([pa.field(field.name, _plain(field)) for field in found])

    def batches(
        self, table: str | TableName, columns: Sequence[str], schema: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {self.listed(columns)} FROM {self.quoted(TableName.parse(table))}")
            for batch in cursor.fetch_record_batch():
                # The driver's batches have about 16 MB; slicing them costs nothing.
                for start in range(0, batch.num_rows, batch_rows):
                    yield as_schema(batch.slice(start, batch_rows), schema)

    def select(
        self, connection: Any, statements: Sequence[str], values: pa.Array | None, schema: pa.Schema
    ) -> pa.RecordBatch:
        pieces = " UNION ALL ".join(statements).split(VALUE)
        text = pieces[0] + "".join(f"${number}{piece}" for number, piece in enumerate(pieces[1:], 1))
        with connection.cursor() as cursor:
            cursor.execute(text, None if values is None else one_row(values))
            table = cursor.fetch_arrow_table()
        connection.commit()
        return as_schema(one_batch(table), schema)

    def byte_length(self, field: pa.Field) -> str:
        name = self.quoted(field.name)
        if is_text(field.type):
            return f"COALESCE(octet_length(CAST({name} AS text)), 0)"
        if pa.types.is_binary(field.type):
            return f"COALESCE(octet_length({name}), 0)"
        raise unsupported("a relation left in PostgreSQL", field)

    def column_type(self, field: pa.Field, *, key: bool = False) -> str:
        kind = field.type
        if found := _TYPES.get(kind):
            return found
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        if pa.types.is_timestamp(kind):
            return "timestamp with time zone" if kind.tz else "timestamp"
        if pa.types.is_time(kind):
            return "time"
        if is_text(kind):
            return "text"
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return "bytea"
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return f"{self.column_type(kind.value_field)}[]"
        if pa.types.is_dictionary(kind):
            return self.column_type(pa.field(field.name, kind.value_type))
        raise unsupported("PostgreSQL", field)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the plain types of ``schema``."""
    columns = [_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return column if column.type == wanted else column.cast(wanted)


def _plain(field: pa.Field) -> pa.DataType:
    """Return the plain type without the driver's metadata. A numeric with given precision is a decimal, others text."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        modifier = int((field.metadata or {}).get(_NUMERIC.encode(), b"-1"))
        if getattr(kind, "type_name", None) == "numeric" and modifier > 4:
            # numeric(precision, scale) as the server encodes it; the scale may be negative, in 11 bits.
            precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
            if precision <= 76 and 0 <= scale <= precision:
                return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        return kind.storage_type
    return kind


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
