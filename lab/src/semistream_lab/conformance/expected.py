"""Parts of the conformance suite: small relations, streams, the correct answer, and supervised runs of a join.

The correct answer is computed with dictionaries and lists only, so it shares no code with the joins.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.statistics import JoinStatistics
from semistream.joins.interface.join import How, Join
from semistream.relation.relation import Relation
from semistream.relation.rows.row_sizes import batch_bytes

__all__ = [
    "Outcome",
    "assert_same_rows",
    "held_bytes",
    "in_batches",
    "in_turns",
    "join_pairs",
    "laboratory",
    "paired",
    "run",
    "valid_pairs",
]

_MOST_IDLE_TURNS = 20_000
_ROWS_SHOWN = 8
_BITS = {pa.float16(): pa.uint16(), pa.float32(): pa.uint32(), pa.float64(): pa.uint64()}


# -- the correct answer -----------------------------------------------------------------------------------


def join_pairs(
    stream: pa.Table, master: pa.Table, on: Sequence[str], key: Sequence[str], how: How
) -> list[tuple[int, int | None]]:
    """Return the result as pairs of row numbers, by the definition of the join. None means no match."""
    rows_of: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, values in enumerate(zip(*(master.column(name).to_pylist() for name in key), strict=True)):
        if None not in values:
            rows_of[values].append(row)
    pairs: list[tuple[int, int | None]] = []
    for row, values in enumerate(zip(*(stream.column(name).to_pylist() for name in on), strict=True)):
        partners = rows_of.get(values, []) if None not in values else []
        if partners:
            pairs.extend((row, partner) for partner in partners)
        elif how == "left":
            pairs.append((row, None))
    return pairs


def valid_pairs(
    pairs: Iterable[tuple[int, int | None]],
    times: Sequence[int | None],
    begins: Sequence[int],
    ends: Sequence[int | None],
    how: How,
) -> list[tuple[int, int | None]]:
    """Return, of the pairs of an equality join, those of a row of R that is valid at the time of the tuple.

    A row is valid from its begin until its end, and at most until the next row of its key begins.
    """
    begun: dict[int, list[int]] = {}
    for row, partner in pairs:
        at, rows = times[row], begun.setdefault(row, [])
        if partner is not None and at is not None and begins[partner] <= at:
            rows.append(partner)
    found: list[tuple[int, int | None]] = []
    for row, partners in begun.items():
        latest = max(partners, key=begins.__getitem__, default=None)
        if latest is not None:
            at, end = times[row], ends[latest]
            latest = None if at is not None and end is not None and end <= at else latest
        if latest is not None or how == "left":
            found.append((row, latest))
    return found


def paired(
    stream: pa.Table, master: pa.Table, key: Sequence[str], pairs: Iterable[tuple[int, int | None]], suffix: str
) -> pa.Table:
    """Return the result for pairs of row numbers, column by column."""
    left, right = [], []
    for row, partner in pairs:
        left.append(row)
        right.append(partner)
    values = master.drop_columns(list(key)).take(pa.array(right, pa.int64()))
    result = stream.take(pa.array(left, pa.int64()))
    for field, column in zip(values.schema, values.columns, strict=True):
        name = field.name + suffix if field.name in stream.schema.names else field.name
        result = result.append_column(pa.field(name, field.type), column)
    return result


def assert_same_rows(found: pa.Table, wanted: pa.Table, what: str = "the result") -> None:
    """Assert that two tables have the same rows with the same counts. Print the rows that differ."""
    assert found.schema.equals(wanted.schema), f"{what} has schema\n{found.schema}\ninstead of\n{wanted.schema}"
    if _same_when_sorted(found, wanted):
        return
    has, should = _counted(found), _counted(wanted)
    if has == should:
        return
    lines = [f"{what} has {found.num_rows} rows, and {wanted.num_rows} are right; columns {found.schema.names}"]
    for title, rows in (("missing", should - has), ("too many", has - should)):
        lines.append(f"{title}: {rows.total()} rows")
        lines.extend(f"  {count} x {row}" for row, count in sorted(rows.items())[:_ROWS_SHOWN])
    raise AssertionError("\n".join(lines))


def _same_when_sorted(found: pa.Table, wanted: pa.Table) -> bool:
    """Return whether both tables are bitwise equal after sorting. False is inconclusive: some columns cannot be sorted.

    This is a hundred times as fast as counting rows, and most results are correct.
    """
    try:
        first, second = _in_order(found), _in_order(wanted)
    except (pa.ArrowException, TypeError):
        return False
    same: bool = first.equals(second)
    return same


def _in_order(table: pa.Table) -> pa.Table:
    """Return a table sorted by all sortable columns, with floats as their bits, so that -0.0 differs from 0.0."""
    columns = [column.combine_chunks() for column in table.columns]
    bits = pa.table(
        [column.view(_BITS[column.type]) if column.type in _BITS else column for column in columns],
        names=[str(number) for number in range(table.num_columns)],
    )
    ordered = [(field.name, "ascending") for field in bits.schema if not pa.types.is_nested(field.type)]
    return bits.sort_by(ordered)


def _counted(table: pa.Table) -> Counter[str]:
    # as text, because lists are not hashable and NaN is not equal to itself
    return Counter(map(repr, zip(*(column.to_pylist() for column in table.columns), strict=True)))


# -- relations and streams --------------------------------------------------------------------------------


@cache
def laboratory() -> Path:
    """Return a directory for relations that exists as long as the process."""
    folder = Path(tempfile.mkdtemp(prefix="semistream-checks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def in_batches(table: pa.Table, rows: int | None = None) -> list[pa.RecordBatch]:
    """Split a table into batches of ``rows`` rows, or return it as one batch."""
    whole = table.combine_chunks()
    if whole.num_rows == 0:
        return [pa.RecordBatch.from_pylist([], schema=table.schema)]
    batches: list[pa.RecordBatch] = whole.to_batches(max_chunksize=rows or whole.num_rows)
    return batches


# -- supervised runs of a join ----------------------------------------------------------------------------


class Outcome:
    """The result of a join, and the join itself for inspection."""

    def __init__(self, join: Join, batches: list[pa.RecordBatch]) -> None:
        self.join = join
        self.batches = batches
        self.table = pa.Table.from_batches(batches, join.output_schema)

    @property
    def stats(self) -> JoinStatistics:
        """The join's statistics."""
        return self.join.stats


def run(join: Join, batches: Iterable[pa.RecordBatch], *, audit: bool = False) -> Outcome:
    """Process ``batches``. Stop a join that iterates forever; with ``audit``, check it after every iteration."""
    _leash(join, audit=audit)
    return Outcome(join, list(join.process(batches)))


def in_turns(
    join: Join, batch: pa.RecordBatch, rows: int | None = None, *, amid: bool = False
) -> Iterator[pa.RecordBatch]:
    """Offer a batch, ``rows`` at a time, and run an iteration after each offer. Tuples may still wait at the end.

    With ``amid``, also offer rows whenever the join yields a result, in the middle of an iteration.
    """
    at = 0
    while at < batch.num_rows:
        at += join.offer(batch.slice(at, rows))
        for result in join.step():
            yield result
            if amid:
                at += join.offer(batch.slice(at, rows))


def _leash(join: Join, *, audit: bool) -> None:
    step, offer, idle = join.step, join.offer, 0

    def watched_step() -> Iterator[pa.RecordBatch]:
        nonlocal idle
        before = join.pending
        yield from step()
        idle = idle + 1 if join.pending >= before else 0
        assert idle < _MOST_IDLE_TURNS, f"{join.id} made no progress in {idle} turns with {join.pending} tuples waiting"
        if audit:
            join.check()

    def watched_offer(batch: pa.RecordBatch) -> int:
        nonlocal idle
        taken = offer(batch)
        assert 0 <= taken <= batch.num_rows, f"{join.id} took {taken} of {batch.num_rows} tuples"
        idle = 0 if taken else idle
        if audit:
            join.check()
        return taken

    join.step = watched_step  # type: ignore[method-assign]
    join.offer = watched_offer  # type: ignore[method-assign]


def held_bytes(join: Join) -> int:
    """Return the bytes of all arrays and batches that are reachable from a join, except through its relation."""
    arrays: dict[int, int] = {}
    batches = 0
    seen: set[int] = {id(join.relation), id(join.relation.key), id(join.relation.codec), id(join.relation.device)}
    todo: list[object] = [join]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            owner = _owner(thing)
            arrays[id(owner)] = owner.nbytes
        elif isinstance(thing, pa.RecordBatch):
            batches += batch_bytes(thing)
        elif isinstance(thing, dict):
            todo.extend(thing.values())
        elif isinstance(thing, list | tuple | set) or type(thing).__name__ == "deque":
            todo.extend(thing)  # type: ignore[arg-type]
        elif type(thing).__module__.startswith(("semistream.joins", "semistream.structures")):
            todo.extend(getattr(thing, "__dict__", {}).values())
    return sum(arrays.values()) + batches


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that owns the memory of this view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def fresh(relation: Relation) -> Relation:
    """Open the same relation again, with its own counters."""
    assert relation.path is not None
    return Relation.open(relation.path)
