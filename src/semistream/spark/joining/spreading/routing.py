"""Which task a row goes to if a join has more tasks than R has shards.

The shard of a key is a remainder of its hash. Among the tasks of a shard, keys are divided by *stripes*: ranges of
adjacent keys in R, assigned to tasks round robin. So usually only one task reads a page. If keys were divided by their
hash, every task would need every page: two tasks on one shard read 1.7 times the pages of two tasks on two shards (2 M
rows, 5 % memory); with stripes 1.26 times, in half the requests. Stripes are short, so frequent keys that are adjacent
are still divided. Small relations, and keys whose order Spark does not know, such as dates, are divided by hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.relation import Relation
from semistream.spark.relations.key_expressions import by_position, key_hash

__all__ = ["Routing", "stripe_width"]

_STRIPE_PAGES = 16
"""Approximate number of pages per stripe. Stripes do not end at page boundaries, so two tasks may need one page."""
_FEW_STRIPES = 64
"""Minimum number of stripes; with fewer, tasks would get parts of R of different sizes."""


def stripe_width(shard: Relation) -> int:
    """Return the number of key64 values per stripe; 0 if there are no stripes."""
    index = shard.indexes[0]
    if not isinstance(index, ClusteredIndex) or index.first.size < _STRIPE_PAGES * _FEW_STRIPES:
        return 0
    return max(1, (int(index.last_key) - int(index.first.min())) * _STRIPE_PAGES // int(index.first.size))


@dataclass(frozen=True)
class Routing:
    """How rows are divided among the tasks of a join."""

    shards: int
    tasks: int
    """A multiple of the number of shards. Task i has shard i modulo the number of shards."""
    width: int = 0
    """Values of key64 per stripe; see `stripe_width`."""

    def part_of(self, df: DataFrame, on: tuple[str, ...], codec: KeyCodec) -> Column:
        """Return the task of each row of ``df``, whose columns are `positional`."""
        hashed = key_hash(df, on, codec)
        key = self._key64(df, on, codec, hashed) if self.width and self.tasks > self.shards else None
        if key is None:
            return F.pmod(hashed, F.lit(self.tasks)).cast("int")
        stripe = F.floor(key / F.lit(float(self.width)))
        inside = F.pmod(F.coalesce(stripe, F.lit(0)), F.lit(self.tasks // self.shards))
        return (F.pmod(hashed, F.lit(self.shards)) + F.lit(self.shards) * inside).cast("int")

    def _key64(self, df: DataFrame, on: tuple[str, ...], codec: KeyCodec, hashed: Column) -> Column | None:
        """Return key64, by which R is sorted; None if Spark cannot compute it from the key column."""
        if not codec.exact:
            return hashed
        position = df.columns.index(on[0])
        plain = isinstance(df.schema.fields[position].dataType, st.IntegralType)
        signed = pa.types.is_signed_integer(codec.types[0])
        return by_position(position).cast("bigint") if plain and signed else None
