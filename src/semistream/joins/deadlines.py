"""Deadlines of tuples in a stream column: the types that the column may have, and their meaning."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.arguments import nearest
from semistream.core.arrays import Floats
from semistream.core.clock import Clock, RealClock
from semistream.core.errors import UnsupportedJoinError
from semistream.relation.keys.key_columns import plain_type

__all__ = ["check_deadline", "check_moments", "deadlines_of"]

_LONGEST = 1e9
"""Maximum seconds, 31 years, from now to a deadline that is a whole number. A calendar time would be further away in
any unit, because the machine's clock counts from about its last start."""


def check_deadline(schema: pa.Schema, name: str) -> None:
    """Raise unless column ``name`` of a stream can hold deadlines.

    >>> check_deadline(pa.schema({"id": pa.int64(), "by": pa.string()}), "by")
    Traceback (most recent call last):
    ...
    semistream.core.errors.UnsupportedJoinError: deadline='by' is a column of type string, but a deadline is a \
timestamp, or a number of seconds of the join's clock; cast the column first
    """
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        there = f"the stream has {len(found)} columns of that name; rename all but one"
        if not found:
            there = nearest(name, schema.names, f"the stream has {', '.join(schema.names) or 'no columns'}")
        raise UnsupportedJoinError(f"deadline={name!r} must be a column of the stream; {there}")
    kind = plain_type(schema.field(name).type)
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numbers or pa.types.is_timestamp(kind) or pa.types.is_null(kind)):
        raise UnsupportedJoinError(
            f"deadline={name!r} is a column of type {kind}, but a deadline is a timestamp, or a number of seconds of "
            "the join's clock; cast the column first"
        )


def check_moments(column: pa.Array, name: str, clock: Clock) -> None:
    """Raise if whole numbers cannot be seconds of ``clock``: such deadlines would never be due.

    >>> from semistream.core.clock import VirtualClock
    >>> check_moments(pa.array([10, 1_795_006_464_000_000_000]), "by", VirtualClock())
    Traceback (most recent call last):
    ...
    semistream.core.errors.UnsupportedJoinError: deadline='by' has the value 1795006464000000000, but a number means \
seconds of the join's clock, which is at 0 now; cast calendar times to timestamps, and use NULL for no deadline
    """
    kind = plain_type(column.type)
    if not pa.types.is_integer(kind):
        return
    latest = pc.max(column if column.type == kind else column.cast(kind)).as_py()
    if latest is not None and latest - clock.now() > _LONGEST:
        raise UnsupportedJoinError(
            f"deadline={name!r} has the value {latest}, but a number means seconds of the join's clock, which is at "
            f"{clock.now():.0f} now; cast calendar times to timestamps, and use NULL for no deadline"
        )


def deadlines_of(column: pa.Array, clock: Clock) -> Floats:
    """Return deadlines as seconds of ``clock``; NULL and NaN mean no deadline and become infinity.

    Numbers are seconds of the clock. If the clock is the machine's, timestamps are calendar times, in UTC if they have
    no time zone. With any other clock, a timestamp stands for the seconds since 1970 on that clock.
    """
    kind = plain_type(column.type)
    if column.type != kind:
        column = column.cast(kind)
    ticks = 1.0
    if pa.types.is_timestamp(kind):
        ticks = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        column = column.cast(pa.int64())
    # A float may round times that are very far away.
    dues: Floats = column.cast(pa.float64(), safe=False).fill_null(np.inf).to_numpy(zero_copy_only=False) / ticks
    if pa.types.is_timestamp(kind) and isinstance(clock, RealClock):
        dues = dues - (time.time() - clock.now())
    dues[np.isnan(dues)] = np.inf
    return dues
