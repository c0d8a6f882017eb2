"""What happens to stream rows that have no match in R.

``null`` and ``drop`` are SQL's ``LEFT JOIN`` and ``JOIN``. A *dead letter* stays in the same frame, marked: the column
`MISSING_IN` names the join in which it had no match. Two frames would be two queries, which read R at two different
times: a row could end up in both of them, or in neither. Marked rows pass all later joins unchanged, and
`semistream.spark.write_stream` sends them to a separate sink. For *parked* rows see `semistream.spark.joining.parking`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from semistream.core.errors import JoinArgumentError, KeyColumnError, UnsupportedJoinError
from semistream.joins import How, Join
from semistream.joins.interface.output import has_no_partner
from semistream.relation.keys.key_columns import is_number, is_text
from semistream.spark.relations.key_expressions import has_column
from semistream.spark.relations.types import arrow_schema

__all__ = [
    "MISSING_IN",
    "After",
    "Marker",
    "MissingRule",
    "OnMissing",
    "check_no_deadline",
    "check_surrogate",
    "has_marker",
    "marked_as",
    "milliseconds_of",
    "missing_rule",
    "unknown_value",
    "with_marker",
]

OnMissing = Literal["null", "drop", "dead_letter", "park"]
After = Literal["null", "drop", "dead_letter"]

MISSING_IN = "missing_in"
"""Column with the name of the join in which a dead letter has no match; NULL in all other rows."""

_MARK = "semistream.dead_letters"
_WAYS: tuple[After, ...] = ("null", "drop", "dead_letter")
_AS_SQL: dict[How, After] = {"left": "null", "inner": "drop"}
_UNITS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(millisecond|second|minute|hour|day)s?", re.IGNORECASE)


@dataclass(frozen=True)
class MissingRule:
    """What finally happens to rows without a match, and how long they wait before that."""

    way: After
    park_for: int | None = None
    """Milliseconds; None: they do not wait."""


def missing_rule(
    how: How | None,
    on_missing: OnMissing | None,
    park_for: str | float | timedelta | None = None,
    after_park: After | None = None,
) -> MissingRule:
    """Combine ``how`` and ``on_missing``, or raise if they contradict each other.

    >>> missing_rule("left", None).way, missing_rule(None, None).way
    ('null', 'null')
    >>> missing_rule(None, "park", "1 hour", "dead_letter")
    MissingRule(way='dead_letter', park_for=3600000)
    """
    if how not in (None, "inner", "left"):
        raise UnsupportedJoinError(f"how must be 'inner' or 'left', not {how!r}")
    if on_missing not in (None, *_WAYS, "park"):
        raise UnsupportedJoinError(f"on_missing must be one of {', '.join((*_WAYS, 'park'))}, not {on_missing!r}")
    if on_missing != "park":
        for name, given in (("park_for", park_for), ("after_park", after_park)):
            if given is not None:
                raise UnsupportedJoinError(f"{name} is for parked rows; give on_missing='park' too, or leave it out")
        way = on_missing or _AS_SQL[how or "left"]
        _check_agree(how, way, "on_missing")
        return MissingRule(way)
    if park_for is None:
        raise UnsupportedJoinError("on_missing='park' needs park_for: how long a row waits, such as '1 hour'")
    if after_park not in (None, *_WAYS):
        raise UnsupportedJoinError(f"after_park must be one of {', '.join(_WAYS)}, not {after_park!r}")
    way = after_park or _AS_SQL[how or "left"]
    _check_agree(how, way, "after_park")
    return MissingRule(way, milliseconds_of(park_for))


def milliseconds_of(duration: str | float | timedelta) -> int:
    """Return a duration in milliseconds: seconds as a number, a ``timedelta``, or text.

    >>> milliseconds_of("1 hour 30 minutes"), milliseconds_of(1.5), milliseconds_of(timedelta(days=1))
    (5400000, 1500, 86400000)
    """
    if isinstance(duration, timedelta):
        found = duration.total_seconds() * 1000
    elif isinstance(duration, str):
        if not _PART.match(duration) or _PART.sub("", duration).strip():
            raise UnsupportedJoinError(
                f"{duration!r} is not a duration; write one such as '90 seconds' or '1 day 6 hours'"
            )
        found = sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(duration))
    else:
        found = duration * 1000
    if not 0 < found < 2**53:
        raise UnsupportedJoinError(f"a duration must be more than 0 s, but {duration!r} is {found / 1000:g} s")
    return max(1, round(found))


def _check_agree(how: How | None, way: After, name: str) -> None:
    if how is None or way == _AS_SQL[how] or (how == "inner" and way == "dead_letter"):
        return
    said = "keeps rows without a match" if how == "left" else "does not keep rows without a match"
    other = {"null": "keeps them, with NULLs", "drop": "drops them", "dead_letter": "takes them out as dead letters"}
    raise UnsupportedJoinError(f"how={how!r} {said}, but {name}={way!r} {other[way]}; leave out one of the two")


def check_no_deadline(options: Mapping[str, object]) -> None:
    """Refuse options with which rows get no result or a late one: on Spark, a micro-batch is joined as a whole."""
    for name in ("deadline", "on_overload"):
        if name in options:
            raise JoinArgumentError(
                f"{name}={options[name]!r} does not work on Spark: a micro-batch is joined as a whole, and each of "
                "its rows gets a result; leave it out, make micro-batches smaller for lower latency, and filter "
                "rows that are too old before the join, or use semistream.create on one machine",
                name,
            )


def check_surrogate(stream: DataFrame, keys: tuple[str, ...], surrogate: str | None, unknown: object) -> None:
    """Refuse a surrogate key for a key of several columns, and ``unknown`` without ``surrogate``."""
    if surrogate is not None and len(keys) > 1:
        raise JoinArgumentError(
            f"surrogate replaces a key of one column, but this key has {len(keys)}; leave it out", "surrogate"
        )
    if surrogate is not None and has_column(stream, surrogate, besides=keys):
        raise JoinArgumentError(
            f"the stream already has a column {surrogate!r}; rename it, drop it before the join, or give prefix",
            "surrogate",
        )
    if unknown is not None and surrogate is None:
        raise JoinArgumentError(
            "unknown is the surrogate key of rows without a match; name the surrogate column too: surrogate=",
            "unknown",
        )


def unknown_value(unknown: object, surrogate: str, kind: st.DataType) -> Any:
    """Return ``unknown`` as a literal that Spark casts to the type of R's column ``surrogate`` unchanged, or raise.

    Spark's own cast turns 3.7 into 3, and without ANSI mode 2**40 into 0, which may be the key of another row.

    >>> unknown_value("-1", "product_key", st.IntegerType())
    -1
    """
    (ours,) = arrow_schema(st.StructType([st.StructField(surrogate, kind)]))
    try:
        found = _exactly(unknown, ours.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        raise JoinArgumentError(
            f"unknown is {unknown!r}, which the surrogate column {surrogate!r} of type {kind.simpleString()} cannot "
            "hold exactly; give a value of that type, or build the relation with a column that can hold it",
            "unknown",
        ) from None
    return found.isoformat() if hasattr(found, "isoformat") else found  # Spark parses dates and times from text


def _exactly(value: object, kind: pa.DataType) -> Any:
    """Return ``value`` converted to ``kind``; raise if that would change it."""
    if isinstance(value, str) and not is_text(kind):
        return pa.scalar(value.strip()).cast(kind).as_py()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = Decimal(value)
    given = pa.scalar(value)
    found = given.cast(kind)
    if given.type == kind or is_text(kind):
        return found.as_py()
    same = found.cast(given.type) == given if isinstance(value, float) else found.as_py() == value
    if not same or is_number(given.type) != is_number(kind):
        raise ValueError
    return found.as_py()


def has_marker(stream: DataFrame) -> bool:
    """Return whether a join before this one marks dead letters; a column that only has the same name does not count."""
    return any(part.name == MISSING_IN and _MARK in part.metadata for part in stream.schema.fields)


def with_marker(stream: DataFrame, marked: Column | None = None) -> DataFrame:
    """Return a stream with the column of marks.

    It is added, NULL or as ``marked``, if no earlier join did that.
    """
    if has_marker(stream):
        return stream
    if MISSING_IN in stream.columns:
        raise KeyColumnError(
            f"the stream has a column {MISSING_IN!r}, a name that dead letters use for their mark; rename it"
        )
    mark = (F.lit(None) if marked is None else marked).cast("string").alias(MISSING_IN, metadata={_MARK: True})
    return stream.select("*", mark)


def marked_as(before: Column, missing: Column, label: str) -> Column:
    """Return the column of marks with ``label`` for rows that have no match and that no earlier join has marked."""
    mark = F.coalesce(before, F.when(missing, F.lit(label)))
    return mark.alias(MISSING_IN, metadata={_MARK: True})


@dataclass(frozen=True)
class Marker:
    """The column `MISSING_IN` in a task: marked rows bypass the join, and rows without a match are marked.

    Parameters
    ----------
    column
        Position of the column in the stream.
    label
        The mark for rows without a match; None leaves them unmarked.
    """

    column: int
    label: str | None = None

    def unmarked(self, batches: Iterator[pa.RecordBatch], passed: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows to join; rows that were marked before are put into ``passed``."""
        for batch in batches:
            mark = batch.column(self.column)
            if mark.null_count < batch.num_rows:
                passed.append(batch.filter(pc.is_valid(mark)))
                batch = batch.filter(pc.is_null(mark))
            yield batch

    def results(
        self, joined: Join, batches: Iterator[pa.RecordBatch], passed: deque[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results of the join, and the rows that bypassed it."""
        for result in joined.process(batches):
            yield self._marked(result) if has_no_partner(result) else result
            while passed:
                yield _with_nulls(passed.popleft(), joined.output_schema)
        while passed:
            yield _with_nulls(passed.popleft(), joined.output_schema)

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.label is None:
            return batch
        field = batch.schema.field(self.column)
        return batch.set_column(self.column, field, pa.repeat(pa.scalar(self.label, field.type), batch.num_rows))


def _with_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    nulls = [pa.nulls(batch.num_rows, field.type) for field in list(schema)[batch.num_columns :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema)
