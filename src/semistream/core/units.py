"""Amounts of memory as text: ``"256MB"``, or ``"5%"`` of a relation.

A share is meant for large relations. For a small R it would be less than a join needs, or so little that each batch
reads R several times; holding such an R whole costs less. So `memory_bytes`, which joins, Spark, the tuner, the command
line and pipeline files use, follows these rules:

* A number of bytes is exact. A join raises an error if it is too small.
* A share of an R of at most `SMALL_RELATION` bytes is always enough to hold R whole.
* A share of a larger R is exact. A join raises it to its minimum.

Benchmarks that compare joins at 1 % of R use the exact bytes from `parse_bytes`.
"""

from __future__ import annotations

import math
import re

__all__ = [
    "SMALL_RELATION",
    "check_memory",
    "format_bytes",
    "format_count",
    "is_share",
    "memory_bytes",
    "memory_said",
    "parse_bytes",
    "parse_count",
    "whole_relation",
]

SMALL_RELATION = 16_000_000
"""Bytes of R up to which any share of R is enough to hold R whole."""
_A_BYTE, _A_ROW, _A_JOIN = 2, 50, 1 << 18
"""Bytes of memory that hold R whole: per byte of R, per row, and for a join's other parts.

Measured with `adaptivejoin`: 1.4 per byte of wide rows, 28 per row of 10 bytes, 48 KB for 500 rows; 64 per packed row
of 19 bytes, which may vary in length. The rest is for updates of R, and for parked rows, which get a quarter of the
memory on Spark.
"""

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_PATTERN = re.compile(r"\s*((?:[0-9]+_)*[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)\s*")


def parse_bytes(value: int | float | str, *, of: int | None = None) -> int:
    """Return a number of bytes.

    Parameters
    ----------
    value
        A number of bytes, or text: a number with a decimal unit (``MB`` = 10⁶), a binary one (``MiB`` or
        ``M`` = 2²⁰), or ``%`` of ``of``.
    of
        Base of a percentage, usually the size of the relation.

    Examples
    --------
    >>> parse_bytes("256MB"), parse_bytes("1.5 KiB"), parse_bytes("5%", of=2000)
    (256000000, 1536, 100)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"memory must be a number of bytes or text such as '64MB' or '5%', not {value!r}")
    if isinstance(value, int | float):
        if not 1 <= value < math.inf:
            raise ValueError(f"memory must be finite and at least one byte, not {value!r}")
        return int(value)
    match = _PATTERN.fullmatch(value)
    if match is None:
        raise ValueError(f"cannot read {value!r} as an amount of memory; write '64MB', '1.5GiB' or '5%'")
    number, unit = float(match[1].replace("_", "")), match[2]
    if unit == "%":
        if of is None:
            raise ValueError(
                f"{value!r} is a share, but there is no relation here to take a share of; give bytes, such as '64MB'"
            )
        amount = number / 100 * of
    elif unit.upper() in _UNITS:
        amount = number * _UNITS[unit.upper()]
    else:
        raise ValueError(f"unknown unit {unit!r} in {value!r}; use B, KB, MB, GB, KiB, MiB, GiB or %")
    if amount < 1:
        raise ValueError(f"memory must be at least one byte, but {value!r} is {amount:g}")
    return int(amount)


def check_memory(value: int | float | str) -> None:
    """Raise as `parse_bytes` does; the amount may be a share of a relation that does not exist yet."""
    parse_bytes(value, of=1 << 40)


def is_share(memory: int | float | str | None) -> bool:
    """Return whether an amount of memory is a share of R.

    >>> is_share("5%"), is_share("64MB"), is_share(1000)
    (True, False, False)
    """
    return isinstance(memory, str) and memory.rstrip().endswith("%")


def whole_relation(nbytes: int, rows: int) -> int:
    """Return the bytes of memory that a join needs to hold an R of ``nbytes`` and ``rows`` whole."""
    return _A_BYTE * nbytes + _A_ROW * rows + _A_JOIN


def memory_bytes(memory: int | float | str, nbytes: int, rows: int) -> int:
    """Return the bytes of a join's memory, which may be given as a share of an R of ``nbytes`` and ``rows``.

    >>> memory_bytes("5%", 10**9, 10**7), memory_bytes("64MB", 10**9, 10**7)
    (50000000, 64000000)
    >>> memory_bytes("5%", 10**7, 10**5) == whole_relation(10**7, 10**5)
    True
    """
    if not is_share(memory) or nbytes > SMALL_RELATION:
        return parse_bytes(memory, of=nbytes)
    wished = parse_bytes(memory, of=1 << 40) * nbytes >> 40  # also correct if that is less than a byte
    return max(wished, whole_relation(nbytes, rows))


def memory_said(value: str) -> str:
    """Return an amount of memory as text for a message.

    >>> memory_said("5%"), memory_said("64MB")
    ('5% of R', '64MB')
    """
    return f"{value} of R" if is_share(value) else value


def parse_count(text: str) -> float:
    """Return a number written with or without a metric suffix, as `format_count` writes it.

    >>> parse_count("100M"), parse_count("2.5 k"), parse_count("1_000")
    (100000000.0, 2500.0, 1000.0)
    """
    match = _PATTERN.fullmatch(text)
    sizes = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    if match is None or match[2].upper() not in sizes:
        raise ValueError(f"cannot read {text!r} as a number; write 50000, 50k, 2.5M or 100G")
    return float(match[1].replace("_", "")) * sizes[match[2].upper()]


def format_bytes(count: float) -> str:
    """Return bytes with a decimal unit and three digits, as ``parse_bytes`` reads them.

    >>> format_bytes(64_000_000), format_bytes(8192), format_bytes(12)
    ('64 MB', '8.19 KB', '12 B')
    """
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(count) >= 0.9995 * size:  # 999.5 of the smaller unit are 1000 in three digits
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def format_count(count: float) -> str:
    """Return a count with a metric suffix: ``12.3 k``, ``4.56 M``.

    >>> format_count(12_345), format_count(999)
    ('12.3 k', '999')
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(count) >= 0.9995 * size:  # 999.5 of the smaller unit are 1000 in three digits
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"
