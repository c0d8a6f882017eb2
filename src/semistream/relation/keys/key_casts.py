"""Casts a stream's column to the type of R's key in Spark SQL, and says whether the cast loses information."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from semistream.relation.keys.key_columns import KeyColumn, is_binary, is_number, is_text, plain_type

__all__ = ["KeyCast", "column_sql", "derived_name", "key_cast"]


@dataclass(frozen=True, slots=True)
class KeyCast:
    """A Spark SQL expression that casts a column to the type of R's key.

    ``keeps`` means that no value becomes a different key, as when 1.7 becomes 1, or noon becomes a day. A value that
    R's type cannot hold becomes NULL and has no match.
    """

    sql: str
    keeps: bool


def key_cast(name: str, theirs: pa.DataType, column: KeyColumn) -> KeyCast:
    """Return the cast of column ``name`` of type ``theirs`` to ``column``, which does not accept it directly.

    >>> from semistream.relation.keys.key_kinds import IntegerKey
    >>> key_cast("product", pa.string(), IntegerKey(pa.int64()))
    KeyCast(sql='try_cast(product as bigint)', keeps=True)
    >>> key_cast("product", pa.float64(), IntegerKey(pa.int64())).sql
    'case when product = try_cast(product as bigint) then try_cast(product as bigint) end'
    """
    theirs = plain_type(theirs)
    # Text that is not a number must not fail the query, as ``cast`` would. No Spark integer type holds all of uint64.
    kind = "bigint" if pa.types.is_uint64(column.type) else column.sql_type
    cast = f"try_cast({column_sql(name)} as {kind})"
    if _keeps(theirs, column):
        return KeyCast(cast, keeps=True)
    if is_number(theirs) and is_number(column.type):
        return KeyCast(f"case when {column_sql(name)} = {cast} then {cast} end", keeps=False)
    return KeyCast(cast, keeps=False)


def _keeps(theirs: pa.DataType, column: KeyColumn) -> bool:
    ours = column.type
    if pa.types.is_uint64(ours):
        return False
    if is_text(theirs):  # text is rounded when cast to a decimal, and truncated when cast to a date
        return is_binary(ours) or bool(pa.types.is_integer(ours))
    if pa.types.is_integer(theirs):
        return is_text(ours) or bool(pa.types.is_decimal(ours))
    if pa.types.is_decimal(theirs):
        scale = 0 if pa.types.is_integer(ours) else ours.scale if pa.types.is_decimal(ours) else -1
        return bool(theirs.scale <= scale)
    if pa.types.is_date(theirs):  # without a time zone, a day begins at the same timestamp everywhere
        return is_text(ours) or bool(pa.types.is_timestamp(ours) and ours.tz is None)
    return False


def column_sql(name: str) -> str:
    """Return a column's name as written in Spark SQL.

    >>> column_sql("id"), column_sql("unit price")
    ('id', '`unit price`')
    """
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def derived_name(name: str, sql_type: str) -> str:
    """Return a name for a column that has been cast.

    >>> derived_name("unit price", "decimal(9,2)")
    'unit_price_as_decimal_9_2'
    """
    return re.sub(r"\W+", "_", f"{name}_as_{sql_type}").strip("_")
