"""Key columns as Spark expressions, over a DataFrame whose columns are named by position.

PySpark's ``mapInArrow`` does not support column names with a dot, or two columns of the same name. So columns are named
by position on their way to Python, and get their names back there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semistream.relation.keys.key_codec import KeyCodec

__all__ = ["by_position", "folding", "has_column", "key_hash", "key_order", "positional", "quoted", "shard_of"]


def positional(df: DataFrame) -> DataFrame:
    """Return the same data with the columns named by their position."""
    return df.toDF(*(_name(position) for position in range(len(df.columns))))


def shard_of(df: DataFrame, on: Sequence[str], codec: KeyCodec, shards: int) -> Column:
    """Return the shard of each row of `positional` ``df``, equal to `KeyCodec.shards`."""
    return F.pmod(key_hash(df, on, codec), F.lit(shards)).cast("int")


def quoted(name: str) -> Column:
    """Return a column by its exact name, which may contain any characters."""
    return F.col(f"`{name.replace('`', '``')}`")


def folding(df: DataFrame) -> Callable[[str], str]:
    """Return a function that makes names equal that Spark treats as equal."""
    return str if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower


def has_column(df: DataFrame, name: str, besides: Sequence[str]) -> bool:
    """Return whether a column other than ``besides`` has that name, by Spark's comparison of names."""
    fold = folding(df)
    return any(fold(name) == fold(other) for other in df.columns if other not in besides)


def key_order(df: DataFrame, codec: KeyCodec) -> Column:
    """Return an expression that orders the rows of `positional` ``df`` by their key64."""
    if codec.exact:
        return F.col(_name(df.columns.index(codec.names[0])))
    return key_hash(df, codec.names, codec)


def by_position(position: int) -> Column:
    """Return a column of a `positional` frame."""
    return F.col(_name(position))


def _name(position: int) -> str:
    return f"c{position}"


def key_hash(df: DataFrame, on: Sequence[str], codec: KeyCodec) -> Column:
    """Return ``xxhash64`` of the key in the relation's types.

    A value that the relation's type cannot hold becomes NULL. It has no match, so it may go to any shard.
    """
    columns = []
    for name, wanted in zip(on, codec.sql_types, strict=True):
        position = df.columns.index(name)
        column = F.col(_name(position))
        same = df.schema.fields[position].dataType.simpleString() == wanted
        columns.append(column if same else column.try_cast(wanted))
    return F.xxhash64(*columns)
