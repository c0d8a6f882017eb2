"""How the pairs of a join become batches, each limited in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.joins.interface.conditions import AsOf
from semistream.joins.interface.contract import Algorithm
from semistream.joins.interface.leaving import BatchRows, Leaving, portions
from semistream.joins.interface.missing_keys import MissingKeys
from semistream.joins.interface.output import without_partner
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.pages.page_layout import FIRST
from semistream.relation.rows.fitting import null_array
from semistream.relation.rows.packed.decoded_sizes import DecodedSizes
from semistream.relation.rows.row_cells import RowLimitError
from semistream.relation.rows.row_gather import RowGather
from semistream.relation.rows.selection import keep_rows
from semistream.structures.lookup import Matches, PageLookup

__all__ = ["Observer", "Results"]

Observer = Callable[[Ints, Bytes, Ints, Bytes], None]
"""Called with the pairs that a join finds: the key of each, and data, starts and flags of R's rows."""


class Results(Algorithm):
    """The part of a join that makes results; `Join` has the rest."""

    output_schema: pa.Schema
    _on_match: Observer | None
    _decoder: RowGather | None
    """Decodes some of R's columns; None for all."""
    _blank_bytes: int
    """Bytes of R's columns in a row in which all of them are NULL."""
    missing: MissingKeys | None = None
    """Counts keys that R does not have, if requested (`watch_missing`)."""

    _found_as: str | None = None
    """Name of the last column of results, if it says which tuples have a match (`tell_found`)."""

    def watch_missing(self, missing: MissingKeys) -> None:
        """Count the keys of tuples without a match from now on."""
        self.missing = missing

    def tell_found(self, name: str) -> None:
        """Add a last, boolean column to the results: whether a tuple has a match. Call this before `bind`.

        NULLs in R's columns are not sufficient, because R may contain NULLs.
        """
        self._found_as = name

    def _with_found(self, schema: pa.Schema) -> pa.Schema:
        return schema if self._found_as is None else schema.append(pa.field(self._found_as, pa.bool_()))

    def _found_column(self, rows: int, value: bool) -> list[pa.Array]:
        return [] if self._found_as is None else [pa.repeat(pa.scalar(value), rows)]

    def joined(
        self, keys: Ints, stream: Leaving, data: Bytes, starts: Ints, flags: Bytes, *, seen: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield stream tuples with their rows of R, which start at ``starts`` in ``data``.

        The pairs are passed to the observer, unless it has already ``seen`` them.
        """
        if self._on_match is not None and not seen:
            self._on_match(keys, data, starts, flags)
        if not self.makes_results:
            self.tally.rows_out += len(keys)
            return
        for begin, end in self._cut(stream, self.relation.codec.sizes_at(data, starts), lambda: (data, starts)):
            yield from self._made(
                begin, end,
                lambda begin, end: self._pairs_of(
                    keys[begin:end], stream.some(begin, end), data, starts[begin:end], flags[begin:end]
                ),
            )  # fmt: skip

    def _cut(
        self, stream: Leaving, sizes: Ints | int, located: Callable[[], tuple[Bytes, Ints]]
    ) -> Iterator[tuple[int, int]]:
        """Cut results into portions. If ``sizes``, bounds of the bytes of R's rows, are too large, rows are measured.

        ``located`` returns the bytes of R's rows and where they start.
        """
        together = stream.sizes + sizes
        packed = self.relation.codec.packed is not None
        if packed and int(np.broadcast_to(together, stream.rows).sum()) > self.result_bytes:
            together = stream.sizes + self._measured(*located()) + self._blank_bytes
        return portions(stream.rows, together, self.result_bytes)

    @cached_property
    def _measured(self) -> DecodedSizes:
        return DecodedSizes(self.relation.codec)

    def looked_up(self, part: Tuples, lookup: PageLookup) -> Iterator[pa.RecordBatch]:
        """Join tuples immediately, each through the index."""
        rows = self.rows_of(part.batch)
        matched = np.zeros(len(part.keys), dtype=bool)
        for found in self._matches(part, lookup):
            matched[found.positions] = True
            yield from self.joined(found.keys, rows.at(found.positions), found.data, found.starts, found.flags)
        self.tally.probes += len(part.keys)
        self.tally.rows_done += len(part.keys)
        yield from self.without_partner(rows.at(np.flatnonzero(~matched)))

    def _matches(self, part: Tuples, lookup: PageLookup) -> Iterator[Matches]:
        if isinstance(self.condition, AsOf):
            return lookup.match_at(part.keys, self.condition.times(part.batch))
        if self.condition.name == "equal":
            return lookup.match(part.keys)
        return lookup.match_between(part.keys, self.condition.highs(part.batch, part.keys))

    def without_partner(self, stream: Leaving) -> Iterator[pa.RecordBatch]:
        """Let tuples without a matching row of R leave: dropped, or with NULLs."""
        self.tally.unmatched += stream.rows
        if self.missing is not None and stream.rows:
            for begin, end in portions(stream.rows, stream.sizes, self.result_bytes):
                self.missing.add(stream.some(begin, end), self.on)
        if self.how == "left":
            for begin, end in portions(stream.rows, stream.sizes + self._blank_bytes, self.result_bytes):
                yield from self._made(begin, end, lambda begin, end: [self._alone(stream.some(begin, end))])

    def _made(self, begin: int, end: int, make: Callable[[int, int], list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield the batches that ``make`` returns for rows; split the rows if Arrow's types cannot hold all of them."""
        try:
            made = make(begin, end)
        except RowLimitError:
            if end - begin == 1:
                raise
            middle = (begin + end) // 2
            yield from self._made(begin, middle, make)
            yield from self._made(middle, end, make)
        else:
            yield from made

    def _pairs_of(
        self, keys: Ints, stream: pa.RecordBatch, data: Bytes, starts: Ints, flags: Bytes
    ) -> list[pa.RecordBatch]:
        rows, results = self._rows_at(data, starts), []
        if not self.relation.key.exact:
            same = self.relation.key.verify(stream, self.on, rows.select(list(self.relation.key.names)))
            if not same.all():
                # Another key with the same hash: R has at most one key per hash, so these tuples have no match. Each
                # is paired with exactly one row that is the first of that key.
                strangers = keep_rows(stream, ~same & (flags & FIRST).astype(bool))
                self.tally.unmatched += strangers.num_rows
                if self.missing is not None:
                    self.missing.add(strangers, self.on)
                if self.how == "left":
                    results.append(self._alone(strangers))
                keys, stream, rows = keys[same], keep_rows(stream, same), keep_rows(rows, same)
        columns = [*stream.columns, *(self.condition.column(field.name, rows, keys) for field in self.condition.fields)]
        columns += self._found_column(stream.num_rows, True)
        results.append(pa.RecordBatch.from_arrays(columns, schema=self.output_schema))
        return results

    def _rows_at(self, data: Bytes, starts: Ints) -> pa.RecordBatch:
        """Decode rows of R, only the columns of the result."""
        if self._decoder is None:
            return self.relation.rows(data, starts)
        return pa.RecordBatch.from_arrays(self._decoder(data, starts), names=list(self._decoder.names))

    def _decoder_of_some(self) -> RowGather | None:
        """Return a decoder for the columns of the result, and for a key that must be compared; None for all columns."""
        stored = self.relation.codec.schema.names
        asked = [field.name for field in self.condition.fields]
        key = [] if self.relation.key.exact else list(self.relation.key.names)
        names = [name for name in stored if name in asked or name in key]
        return RowGather(self.relation.codec, names) if names else None

    def _alone(self, stream: pa.RecordBatch) -> pa.RecordBatch:
        nulls = [null_array(stream.num_rows, field.type) for field in self.condition.fields]
        columns = [*stream.columns, *nulls, *self._found_column(stream.num_rows, False)]
        return pa.RecordBatch.from_arrays(columns, schema=without_partner(self.output_schema))

    def rows_of(self, batch: pa.RecordBatch) -> BatchRows:
        return BatchRows(self.stream_codec, batch)
