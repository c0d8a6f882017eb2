"""R left in a database: a relation whose pages are ranges of keys.

The database does two things. When the relation is opened, it scans its index once to determine where pages begin. Then
it answers range queries. Joins that sort and share their reads (SSIJ, HYBRIDJOIN's page for many tuples) send few
queries, and they cache keys that are requested often. So even a remote server gets few queries.

R should not change while it is open. A key that is added is found if its page has room. A row that a join has cached is
not fetched again. Open the relation again to see all changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import KeyTypeError
from semistream.core.units import parse_bytes
from semistream.relation.databases.address import DatabaseError
from semistream.relation.databases.database import Database, TableName
from semistream.relation.databases.database_device import DatabaseDevice
from semistream.relation.databases.opening import open_database
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import HEADER
from semistream.relation.pages.shard_writer import PAGE_BYTES, check_page_bytes
from semistream.relation.pages.stored_rows import stored_schema
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["relation_in_database"]

_LEAST_ROOM = 512
"""Bytes that a page must have in addition to the rows of the largest key."""


def relation_in_database(
    database: str | Database,
    table: str | TableName,
    key: str,
    *,
    columns: Sequence[str] | None = None,
    page_size: int | str = PAGE_BYTES,
    password: str | None = None,
) -> Relation:
    """Return a table in SQLite, PostgreSQL or MariaDB as a relation, without copying it.

    Parameters
    ----------
    database
        An address such as ``postgresql://user@host/database``, or a database from `open_database`.
    table
        ``table`` or ``schema.table``.
    key
        The key column. It should have an index, because every read is a range of it. Integers, decimals of up to 18
        digits, dates and timestamps can be keys. Text cannot, because every database sorts it differently.
    columns
        Columns to read; by default all.
    page_size
        Maximum bytes of a page. Larger pages need fewer queries, but each returns more rows that are not needed.
    password
        By default ``PGPASSWORD`` or ``MYSQL_PWD``.

    Examples
    --------
    >>> import semistream, sqlite3, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with sqlite3.connect(f"{folder}/r.db") as connection:
    ...         _ = connection.execute("CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT)")
    ...         _ = connection.execute("INSERT INTO products VALUES (2, 'fig'), (1, 'pear')")
    ...     connection.close()
    ...     with relation_in_database(f"sqlite://{folder}/r.db", "products", "id") as relation:
    ...         relation.to_table().to_pydict()
    {'id': [1, 2], 'name': ['pear', 'fig']}
    """
    found = open_database(database, password) if isinstance(database, str) else database
    table = TableName.parse(table)
    schema = found.schema(table)
    if columns is not None:
        names = [key, *(name for name in columns if name != key)]
        schema = found.reader(table, names).schema
    codec = KeyCodec.for_schema(schema, key)
    if not codec.exact or pa.types.is_boolean(codec.types[0]):
        raise KeyTypeError(
            f"{key!r} of {table} is {codec.types[0]}, and the order of such values differs between databases; "
            "use a key of integers, dates or timestamps, or build a relation: semistream build"
        )
    page_bytes = parse_bytes(page_size)
    check_page_bytes(page_bytes, 1.0)
    first, last, rows, unique = _pages(found, table, schema, codec, page_bytes)
    device = DatabaseDevice(found, table, schema, codec, first, page_bytes, stored_schema(schema, codec))
    index = ClusteredIndex(first, np.zeros(first.size, bool), last)
    return Relation(schema, codec, device, [index], [first.size], rows=rows, unique=unique, clustered=True)


def _pages(
    database: Database, table: TableName, schema: pa.Schema, codec: KeyCodec, page_bytes: int
) -> tuple[Ints, int, int, bool]:
    """Return the first key of each page, the last key, the number of rows, and whether no key occurs twice.

    The server adds up the bytes of encoded rows in key order, with all rows of a key together. A page begins at the
    first key past each multiple of ``room`` bytes. So a page holds at most ``room`` bytes plus the rows of one key,
    and ``room`` leaves space for the largest key.
    """
    rows_codec = RowCodec(stored_schema(schema, codec))
    key, source = database.quoted(codec.names[0]), database.quoted(table)
    lengths = [database.byte_length(field) for field in stored_schema(schema, codec) if _varies(field.type)]
    size = " + ".join([str(rows_codec.stride + (13 if rows_codec.variable else 9)), *lengths])
    groups = f"SELECT {key} AS k, SUM({size}) AS b, COUNT(*) AS n FROM {source} WHERE {key} IS NOT NULL GROUP BY {key}"
    whole = database.whole
    with database.connect() as connection:
        totals = database.select(
            connection,
            [f"SELECT {whole('COALESCE(SUM(n), 0)')}, {whole('COALESCE(MAX(b), 0)')}, {whole('COALESCE(MAX(n), 0)')} "
             f"FROM ({groups}) g"],
            None, pa.schema([(name, pa.int64()) for name in ("rows", "most", "repeats")]),
        )  # fmt: skip
        rows, most, repeats = (column[0].as_py() for column in totals.columns)
        room = page_bytes - HEADER - 16 - most
        if room < _LEAST_ROOM:
            raise DatabaseError(
                f"the rows of one key of {table} take up to {most:,} B, but pages have {page_bytes:,} B; give "
                f"page_size of at least {-(-(page_bytes - room + _LEAST_ROOM) // 512) * 512:,} B"
            )
        before = "SUM(b) OVER (ORDER BY k) - b"
        placed = f"SELECT k, {database.quotient(before, room)} AS p FROM ({groups}) g"
        keys = pa.schema([schema.field(codec.names[0]).with_name("k")])
        begins = database.select(connection, [f"SELECT MIN(k) AS k FROM ({placed}) x GROUP BY p"], None, keys)
        ends = database.select(connection, [f"SELECT MAX({key}) AS k FROM {source}"], None, keys)
    if not rows:
        return np.empty(0, np.int64), 0, 0, True
    first, _ = codec.encode(begins.rename_columns([codec.names[0]]))
    last, _ = codec.encode(ends.rename_columns([codec.names[0]]))
    return np.sort(first), int(last[0]), int(rows), int(repeats) == 1


def _varies(kind: pa.DataType) -> bool:
    """Return whether values vary in length. If so, `Database.byte_length` must support the type, or it raises."""
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))
