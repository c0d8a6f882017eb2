"""The relations and streams of the conformance suite: small, but with every shape that has edge cases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.joins.interface.join import How
from semistream.relation.pages import encoding_choice
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import join_pairs, laboratory, paired, valid_pairs

__all__ = ["CASES", "PACKED", "Case", "case", "packing_all"]

_PAGE_BYTES = 512
_TUPLES = 300
_STREAM_KEY = "product"
_MOMENT = pa.timestamp("us", "UTC")
# Rows per key of an R with repeated keys: one row, rows within a page, and rows over many pages.
_REPEATS = (1, 1, 2, 1, 3, 1, 9, 1, 1, 70)


@dataclass(frozen=True)
class Case:
    """A relation on disk, its contents, and a stream to join with it."""

    name: str
    relation: Relation
    master: pa.Table
    stream: pa.Table
    key: tuple[str, ...]
    on: tuple[str, ...]
    as_of: str | None = None
    """The stream's column of times, if the relation is a history."""
    _answers: dict[Any, pa.Table] = field(default_factory=dict, repr=False)

    def open(self) -> Relation:
        """Open the relation again, with its own counters."""
        assert self.relation.path is not None
        return Relation.open(self.relation.path)

    def answer(self, how: How, stream: pa.Table | None = None, suffix: str = "_right") -> pa.Table:
        """Return the correct result for the stream of the case, or for ``stream``."""
        if stream is not None:
            return self._answer(stream, how, suffix)
        if (how, suffix) not in self._answers:
            self._answers[how, suffix] = self._answer(self.stream, how, suffix)
        return self._answers[how, suffix]

    def partnerless(self, stream: pa.Table | None = None) -> int:
        """Return the number of stream tuples without a match in R, including NULL keys."""
        stream = self.stream if stream is None else stream
        pairs = self._pairs(stream, "inner")
        return int(stream.num_rows) - len({row for row, _ in pairs})

    def _answer(self, stream: pa.Table, how: How, suffix: str) -> pa.Table:
        return paired(stream, self.master, self.key, self._pairs(stream, how), suffix)

    def _pairs(self, stream: pa.Table, how: How) -> list[tuple[int, int | None]]:
        pairs = join_pairs(stream, self.master, self.on, self.key, how)
        if self.as_of is None:
            return pairs
        times, begins = _numbers(stream, self.as_of), _numbers(self.master, "since")
        ends = _numbers(self.master, "until") if "until" in self.master.schema.names else [None] * len(begins)
        return valid_pairs(pairs, times, begins, ends, how)


def _numbers(table: pa.Table, name: str) -> list[Any]:
    """Return times as numbers, which can be compared whatever their zone."""
    numbers: list[Any] = table.column(name).cast(pa.int64()).to_pylist()
    return numbers


def _payload(rows: int, rng: np.random.Generator) -> pa.Table:
    """Return the value columns of R: fixed and variable length, with NULLs, one with the name of a stream column."""
    names = [None if row % 11 == 3 else "name " * int(rng.integers(0, 5)) + str(row) for row in range(rows)]
    price = pa.array(rng.integers(0, 9999, rows) / 100, mask=rng.random(rows) < 0.1)
    return pa.table(
        {"row": np.arange(rows), "name": pa.array(names, pa.string()), "price": price, "amount": [1] * rows}
    )


def _packed(rows: int, rng: np.random.Generator) -> Iterator[tuple[str, pa.Array]]:
    """Yield the value columns of a packed R: one for each kind of packing. Some of their values are escaped."""
    number = np.arange(rows)
    odd = number % 29 == 5
    amount = np.where(odd, 1 << 40, 1000 + 10 * number)
    yield "row", pa.array(number)
    names = [f"product number {row}" + " and more" * (row % 3) for row in number]
    yield "name", pa.array(names, mask=number % 11 == 3)
    yield "colour", pa.array(np.array(["red", "green", "blue"])[rng.integers(0, 3, rows)], mask=rng.random(rows) < 0.1)
    yield "amount", pa.array(amount, pa.int64())
    yield "unit", pa.array(["box" if is_odd else "piece" for is_odd in odd])
    yield "note", pa.array([f"{row * 7919 % 997:03}" * (90 if row == 7 else 1) for row in number])


def _tuples(keys: dict[str, pa.Array], rng: np.random.Generator) -> pa.Table:
    rows = len(next(iter(keys.values())))
    notes = [None if row % 7 == 2 else "n" * int(rng.integers(0, 12)) for row in range(rows)]
    return pa.table(
        {"position": np.arange(rows), **keys, "amount": rng.random(rows), "note": pa.array(notes, pa.string())}
    )


def _draw(count: int, rng: np.random.Generator, rows: int = _TUPLES) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return skewed ranks, and a mask of NULL keys. Ranks from ``count`` upwards are absent from R."""
    weights = 1.0 / np.arange(1, count + 1) if count else np.ones(1)
    ranks = rng.choice(max(count, 1), size=rows, p=weights / weights.sum())
    absent = rng.random(rows) < (0.15 if count else 1.0)
    return np.where(absent, count + rng.integers(0, 50, rows), ranks), rng.random(rows) < 0.05


def _integers(ranks: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the keys of ranks. R has even keys; absent keys are below, between and above them."""
    present = 2 * ranks - 300
    outside = np.select([ranks % 3 == 0, ranks % 3 == 1], [-(10**9) - ranks, 2 * (ranks - count) - 299], 10**9 + ranks)
    return np.where(ranks < count, present, outside)


def _versions(ranks: NDArray[np.int64], ends: bool) -> pa.Table:
    """Return when rows are valid: a row of a key begins in each 100 μs, and ends before the next one or is open."""
    rng = np.random.default_rng(len(ranks))
    order = np.argsort(ranks, kind="stable")
    first = np.searchsorted(ranks[order], ranks[order])
    number = np.empty(len(ranks), np.int64)
    number[order] = np.arange(len(ranks)) - first
    begins = 100 * number + rng.integers(0, 50, len(ranks))
    until = pa.array(begins + rng.integers(1, 51, len(ranks)), mask=rng.random(len(ranks)) < 0.4)
    table = pa.table({"since": pa.array(begins).cast(_MOMENT), "until": until.cast(_MOMENT)})
    return table if ends else table.drop_columns(["until"])


def _times(ranks: NDArray[np.int64], versions: NDArray[np.int64]) -> pa.Array:
    """Return a time for each tuple, NULL for some, and for some before or after all rows of its key."""
    rng = np.random.default_rng(len(ranks))
    number = rng.integers(0, versions[np.minimum(ranks, len(versions) - 1)])
    return pa.array(100 * number + rng.integers(-20, 120, len(ranks)), mask=rng.random(len(ranks)) < 0.05).cast(_MOMENT)


@contextlib.contextmanager
def packing_all() -> Iterator[None]:
    """Pack the rows of relations that are built meanwhile, however few they are."""
    before = encoding_choice.PACKED_FROM
    encoding_choice.PACKED_FROM = 0
    try:
        yield
    finally:
        encoding_choice.PACKED_FROM = before


@cache
def case(name: str) -> Case:
    """Return a case by its name. It is built on first use and cached."""
    rng = np.random.default_rng(sum(name.encode()))
    options = dict(CASES[name])
    kind, count, repeats = options.pop("key"), options.pop("keys"), options.pop("repeats", (1,))
    ranks = np.repeat(np.arange(count), np.resize(repeats, count))
    rng.shuffle(ranks)
    drawn, missing = _draw(count, rng)
    # the frequency of a rank must not correlate with its number of rows in R
    drawn = np.where(drawn < count, rng.permutation(count)[np.minimum(drawn, count - 1)] if count else 0, drawn)
    if kind == "integer":
        key: tuple[str, ...] = ("id",)
        on: tuple[str, ...] = (_STREAM_KEY,)
        ours = {"id": pa.array(_integers(ranks, count), pa.int64())}
        theirs = {_STREAM_KEY: pa.array(_integers(drawn, count), pa.int64(), mask=missing)}
    elif kind == "text":
        key, on = ("id",), ("id",)
        ours = {"id": pa.array([f"key {rank}" for rank in ranks], pa.string())}
        theirs = {"id": pa.array([f"key {rank}" for rank in drawn], pa.string(), mask=missing)}
    else:
        key, on = ("region", "code"), ("region", _STREAM_KEY)
        ours = {"region": pa.array(ranks % 5, pa.int32()), "code": pa.array([f"{r // 5}" for r in ranks], pa.string())}
        theirs = {
            "region": pa.array(drawn % 5, pa.int32(), mask=missing),
            _STREAM_KEY: pa.array([f"{r // 5}" for r in drawn], pa.string(), mask=np.roll(missing, 1)),
        }
    master = pa.table(ours)
    if "valid_from" in options:
        times = _versions(ranks, ends="valid_to" in options)
        for field_, column in zip(times.schema, times.columns, strict=True):
            master = master.append_column(field_, column)
    payload = _payload(len(ranks), rng)
    for field_, column in zip(payload.schema, payload.columns, strict=True):
        if options.get("values", "all") == "all" or (options["values"] == "fixed" and field_.name != "name"):
            master = master.append_column(field_, column)
    if options.get("values") == "packed":
        for field_ in _packed(len(ranks), rng):
            master = master.append_column(*field_)
    options.pop("values", None)
    stream, as_of = _tuples(theirs, rng), None
    if "valid_from" in options:
        stream, as_of = stream.append_column("at", _times(drawn, np.resize(repeats, count))), "at"
    options = {"page_size": _PAGE_BYTES, **options}
    with packing_all() if name in PACKED else contextlib.nullcontext():
        relation = Relation.build(master, laboratory() / name, key=list(key), **options)
    if name in PACKED:
        assert len(relation.codec.packings) > 1, f"{name} is packed in {relation.codec.packings}"
    return Case(name, relation, master, stream, key, on, as_of)


CASES: dict[str, dict[str, Any]] = {
    "unique": {"key": "integer", "keys": 300},
    "repeated": {"key": "integer", "keys": 60, "repeats": _REPEATS},
    "empty": {"key": "integer", "keys": 0},
    "one row": {"key": "integer", "keys": 1},
    "one key": {"key": "integer", "keys": 1, "repeats": (60,)},
    "fixed rows": {"key": "integer", "keys": 300, "values": "fixed"},
    "keys only": {"key": "integer", "keys": 60, "repeats": _REPEATS, "values": "none"},
    "many pages": {"key": "integer", "keys": 1700, "fill": 0.1},
    "half full": {"key": "integer", "keys": 200, "fill": 0.5},
    "large pages": {"key": "integer", "keys": 60, "repeats": _REPEATS, "page_size": 8192},
    "text": {"key": "text", "keys": 60, "repeats": _REPEATS},
    "two columns": {"key": "two", "keys": 300, "repeats": (1, 2)},
    "scattered": {"key": "integer", "keys": 60, "repeats": _REPEATS, "clustered": False},
    "scattered text": {"key": "text", "keys": 200, "clustered": False, "fill": 0.8},
    "sharded": {"key": "integer", "keys": 60, "repeats": _REPEATS, "shards": 3},
    "scattered shards": {"key": "two", "keys": 60, "repeats": _REPEATS, "clustered": False, "shards": 2},
    "more shards than keys": {"key": "text", "keys": 2, "shards": 5},
    "packed": {"key": "integer", "keys": 120, "values": "packed", "page_size": 1024},
    "packed, repeated": {"key": "text", "keys": 60, "repeats": _REPEATS, "values": "packed", "page_size": 1024},
    "history": {"key": "integer", "keys": 60, "repeats": _REPEATS, "valid_from": "since", "valid_to": "until"},
    "history of fixed rows": {
        "key": "two", "keys": 60, "repeats": _REPEATS, "values": "fixed", "shards": 3, "valid_from": "since",
    },
}  # fmt: skip
"""Name → how R is built. The key is an integer, a text, or two columns; the rest are options of the build.

Few rows are packed only in the cases of `PACKED`.

Only joins that support the condition ``as_of`` join histories.
"""

PACKED = frozenset(name for name, options in CASES.items() if options.get("values") == "packed")
"""The cases whose rows are packed."""
