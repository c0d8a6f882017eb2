"""Keys as one int64 per row, the same on both sides of a join and in Spark.

Every key, of one column or several, becomes a number, *key64*. Pages, indexes, queues and hash tables work with key64.

Exact keys
    One column of integers, booleans, dates, times, timestamps, durations, or decimals of at most 18 digits.
    key64 is the value itself, so the order is preserved and `KeyCodec.decode` restores the value. (The top bit of an
    unsigned 64-bit key is flipped, which preserves its order.)
Hashed keys
    Strings, binary values, longer decimals, or several columns. key64 is Spark's ``xxhash64`` of the columns.
    Different keys may have the same key64, although R never holds two such keys (its builder checks). So rows are
    matched by key64 and then compared by `KeyCodec.verify`.

A key that contains a NULL matches nothing, as in SQL. A stream value that R's type cannot hold matches nothing either,
such as 300 for ``int8`` or half a second for ``timestamp[s]``. It is a key that R cannot contain, not an error.

**Shards.** A row belongs to shard ``pmod(xxhash64(key columns), shards)``, computed with R's types. Spark computes the
same from the columns cast to `KeyCodec.sql_types`. Types that Spark lacks are hashed as the Spark type that reads
them: ``uint8``, ``uint16``, ``uint32`` and ``uint64`` as ``smallint``, ``int``, ``bigint`` and ``decimal(20,0)`` (as
Spark reads them from Parquet), ``date64`` as the day, timestamps and durations of any unit as microseconds, times as
nanoseconds. The part of a value that such a unit drops is hashed after it, so finer values still differ. Spark itself
never has such values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.core.arguments import listed, nearest
from semistream.core.errors import KeyColumnError, KeyTypeError
from semistream.relation.keys.key_casts import key_cast
from semistream.relation.keys.key_columns import KeyColumn, plain_type
from semistream.relation.keys.key_kinds import key_column
from semistream.relation.keys.xxhash import start
from semistream.relation.rows.fitting import as_type

__all__ = ["KeyCodec", "require_columns"]

_OTHER_SEED = 0x5EED
"""Seed of the second hash. Any value other than Spark's seed works."""


class KeyCodec:
    """Turn the key columns of either side of a join into key64.

    Create it with `for_schema` from R's schema. The stream's columns are then read as R's types.

    Attributes
    ----------
    names
        R's key columns.
    types
        Their types, without dictionaries, extensions and run-end encoding.
    exact
        Whether key64 is the value itself. If not, matches on key64 need `verify`.

    Example
    -------
    >>> import pyarrow as pa
    >>> codec = KeyCodec.for_schema(pa.schema({"id": pa.int32(), "name": pa.string()}), "id")
    >>> keys, valid = codec.encode(pa.record_batch({"customer": [3, None, 2**40]}), on=["customer"])
    >>> valid.tolist(), int(keys[0])
    ([True, False, False], 3)
    >>> codec.shards(keys[:1], 8)
    array([7], dtype=int32)
    """

    def __init__(self, names: tuple[str, ...], columns: tuple[KeyColumn, ...]) -> None:
        self.names = names
        self._columns = columns
        self.types: tuple[pa.DataType, ...] = tuple(column.type for column in columns)
        self.exact: bool = len(columns) == 1 and columns[0].exact

    @classmethod
    def for_schema(cls, schema: pa.Schema, names: str | Sequence[str]) -> KeyCodec:
        """Return the codec for a relation of ``schema`` with the key ``names``, one column name or several."""
        names = listed(names)
        if not names:
            raise KeyColumnError(f"a key needs at least one column; the relation has: {_columns(schema)}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise KeyColumnError(f"key column {twice[0]!r} occurs twice in {list(names)}; name it once")
        require_columns(schema, names, "the relation")
        columns = []
        for name in names:
            column = key_column(plain_type(schema.field(name).type))
            if column is None:
                raise KeyColumnError(
                    f"column {name!r} of type {schema.field(name).type} cannot be a key: keys are integers, "
                    "strings, binary values, booleans, dates, times, timestamps, durations or decimals. "
                    f"{_key_remedy(schema.field(name).type)}"
                )
            columns.append(column)
        return cls(names, tuple(columns))

    @property
    def sql_types(self) -> tuple[str, ...]:
        """The Spark SQL types to cast key columns to, so that Spark's ``xxhash64`` returns the hash that `shards` uses.

        Cast a stream's column with ``try_cast``: a value that R's type cannot hold belongs to no particular shard,
        and must not fail the query.
        """
        return tuple(column.sql_type for column in self._columns)

    def check_stream(self, schema: pa.Schema, on: str | Sequence[str], what: str = "stream") -> None:
        """Raise unless the columns ``on`` of a stream of ``schema`` can be compared with R's key.

        Comparable types are integers of any width, strings of any kind, binary values of any kind, dates, timestamps
        of any unit (both with a time zone or both without), times, durations, and decimals of the same scale.
        Dictionaries, extensions and run-end encoding do not matter. Errors call the data ``what``.
        """
        on = listed(on)
        if len(on) != len(self.names):
            raise KeyColumnError(
                f"the relation's key has {len(self.names)} column(s), {list(self.names)}, but the join names "
                f"{len(on)}: {list(on)}; name one column of the stream for each"
            )
        require_columns(schema, on, f"the {what}")
        for ours, name, column in zip(self.names, on, self._columns, strict=True):
            theirs = schema.field(name).type
            if not column.accepts(plain_type(theirs)):
                raise KeyTypeError(
                    f"{what} column {name!r} is {theirs}, but the relation's key {ours!r} is {column.type}; "
                    f"{_cast_remedy(name, theirs, column, what)}"
                )

    def encode(
        self, batch: pa.RecordBatch, on: Sequence[str] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the key64 of every row, and which rows have a key (the key64 of the others has no meaning).

        Columns ``on`` (R's key columns if None) are read as R's types.
        """
        columns = self._arrays(batch, self.names if on is None else on)
        count = batch.num_rows
        valid = np.ones(count, dtype=np.bool_)
        running = start(0 if self.exact else count)
        for column, array in zip(self._columns, columns, strict=True):
            values = column.read(array)
            if values.valid is not None:
                valid &= values.valid
            if self.exact:
                return values.numbers, valid
            column.hash(values, running)
        return running.view(np.int64), valid

    @property
    def widest_types(self) -> tuple[pa.DataType, ...]:
        """One type per key column that holds all keys of all comparable types which R's type can hold; see `widen`."""
        return tuple(column.widest_type for column in self._columns)

    def widen(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return key columns, of any comparable types, as `widest_types`. Values that R's type cannot hold become NULL.

        >>> codec = KeyCodec.for_schema(pa.schema({"id": pa.int8(), "name": pa.string()}), ["id", "name"])
        >>> names = pa.array(["x", "y"]).dictionary_encode()
        >>> [column.to_pylist() for column in codec.widen(pa.record_batch({"id": [3, 300], "name": names}))]
        [[3, None], ['x', 'y']]
        """
        found = []
        for column, array in zip(self._columns, self._arrays(batch, self.names), strict=True):
            if column.exact and array.type != column.type:
                values = column.read(array)
                array = column.write(values.numbers)
                if values.valid is not None:
                    array = pc.if_else(pa.array(values.valid), array, pa.scalar(None, array.type))
            found.append(as_type(array, column.widest_type))
        return found

    def fingerprint(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return a second hash of each row's key, independent of key64. It has no meaning for keys with a NULL.

        Rows that agree in both hashes have the same key, except with a probability of 2⁻⁶⁴ times that of key64.
        """
        running = np.full(batch.num_rows, _OTHER_SEED, dtype=np.uint64)
        for column, array in zip(self._columns, self._arrays(batch, self.names), strict=True):
            column.hash(column.read(array), running)
        return running.view(np.int64)

    def decode(self, keys: NDArray[np.int64]) -> pa.Array:
        """Return the keys of these key64. Works for exact keys only."""
        if not self.exact:
            raise KeyTypeError(
                f"key {list(self.names)} of type {[str(t) for t in self.types]} is hashed: a key64 cannot be "
                "decoded; read the key columns of the rows instead"
            )
        return self._columns[0].write(keys)

    def shards(self, keys: NDArray[np.int64], count: int) -> NDArray[np.int32]:
        """Return the shard of each key64 among ``count``, equal to Spark's ``pmod(xxhash64(key), count)``."""
        if count < 1:
            raise ValueError(f"shards must be at least 1, not {count}")
        if count == 1:
            return np.zeros(keys.size, dtype=np.int32)
        return np.mod(self.hashes(keys), count).astype(np.int32)

    def hashes(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return Spark's ``xxhash64`` of the key of each key64."""
        if not self.exact:
            return keys
        running = start(keys.size)
        self._columns[0].hash_numbers(keys, None, running)
        return running.view(np.int64)

    def verify(self, stream: pa.RecordBatch, on: Sequence[str], key_columns: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return for each row whether the stream's key equals R's key in the same row of ``key_columns``."""
        equal = np.ones(stream.num_rows, dtype=np.bool_)
        ours = self._arrays(key_columns, self.names)
        for column, left, right in zip(self._columns, self._arrays(stream, on), ours, strict=True):
            equal &= column.equal(column.read(left), column.read(right))
        return equal

    def _arrays(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
        names = listed(names)
        places = [batch.schema.get_field_index(name) for name in names]
        if -1 in places:  # missing, or not unique
            require_columns(batch.schema, names, "the batch")
        return [batch.column(place) for place in places]

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "hashed"
        columns = ", ".join(f"{name}: {type_}" for name, type_ in zip(self.names, self.types, strict=True))
        return f"KeyCodec({columns}; {kind})"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(schema.names) or "(none)"


def require_columns(schema: pa.Schema, names: Sequence[str], where: str) -> None:
    """Raise unless each of the key columns ``names`` occurs once in ``where``, which has ``schema``."""
    for name in names:
        found = schema.get_all_field_indices(name)
        if not found:
            told = f"key column {name!r} is not in {where}; its columns are: {_columns(schema)}"
            hint = nearest(name, schema.names)
            if {part.strip() for part in name.split(",")} <= set(schema.names):
                hint = "for a key of several columns, give each by itself"
            raise KeyColumnError(f"{told}; {hint}" if hint else told)
        if len(found) > 1:
            raise KeyColumnError(
                f"key column {name!r} occurs {len(found)} times in {where}; rename all but one of them"
            )


def _key_remedy(type_: pa.DataType) -> str:
    if pa.types.is_null(type_):
        return "It has no values from which to infer its type: set the type, for CSV files with --type NAME=int64"
    if pa.types.is_floating(plain_type(type_)):
        return "Floats are rarely exactly equal: cast the column to an integer or a decimal, such as decimal(18, 4)"
    return "Choose another column, or build a key from parts of this one"


def _cast_remedy(name: str, theirs: pa.DataType, column: KeyColumn, what: str) -> str:
    cast = key_cast(name, theirs, column)
    how = f"{cast.sql} in SQL, or .cast({_constructor(column.type)}) in Arrow"
    if cast.keeps:
        return f"cast the {what}'s column first: {how}"
    return f"some of its values are not such keys, so decide how to convert them, and cast the column first: {how}"


def _constructor(type_: pa.DataType) -> str:
    """Return the PyArrow call that constructs ``type_``."""
    spelled = {"bool": "bool_()", "date32[day]": "date32()", "date64[ms]": "date64()"}.get(str(type_))
    if spelled is None and pa.types.is_timestamp(type_):
        spelled = f"timestamp({type_.unit!r}" + (f", {type_.tz!r})" if type_.tz else ")")
    elif spelled is None and (pa.types.is_time(type_) or pa.types.is_duration(type_)):
        spelled = f"{str(type_).split('[')[0]}({type_.unit!r})"
    elif spelled is None and pa.types.is_fixed_size_binary(type_):
        spelled = f"binary({type_.byte_width})"
    elif spelled is None:
        spelled = str(type_) if str(type_).endswith(")") else f"{type_}()"
    return f"pa.{spelled}"
