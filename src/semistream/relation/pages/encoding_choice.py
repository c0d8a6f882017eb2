"""Chooses how the rows of a build are packed: from the rows themselves, before the first page is written."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_layout import PageLayout
from semistream.relation.pages.stored_rows import rows_codec, stored_schema
from semistream.relation.rows.packed.packing import Packing
from semistream.relation.rows.packed.packing_choice import PackingChoice
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage.manifest import PLAIN_ROW_BYTES

__all__ = ["ENCODINGS", "PACKED_FROM", "EncodingChoice", "check_encoding"]

ENCODINGS = ("auto", "plain")
PACKED_FROM = 1 << 20
"""Bytes of plain rows from which a build packs them. A smaller relation is held in memory by most joins anyway, and its
versions stay readable for earlier releases."""


def check_encoding(encoding: str) -> None:
    """Raise ValueError unless it is one of `ENCODINGS`."""
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding is {encoding!r}; give 'auto', which packs columns where it pays, or 'plain'")


class EncodingChoice:
    """The encoding of a build's rows. It is decided when the first row is to be written, and is the same for all files.

    Parameters
    ----------
    schema, key
        R's columns, as the rows that are added have them, and its key.
    page_bytes
        The page size. Packing never makes a row that was added too long for a page.
    plain
        Whether rows must not be packed.
    numbers
        The numbers of the columns.
    never
        Columns that must not be packed.
    large
        Whether there are more rows than will be added: then even few of them decide.
    """

    def __init__(
        self, schema: pa.Schema, key: KeyCodec, *, page_bytes: int, plain: bool, numbers: Sequence[int],
        never: Sequence[str] = (), large: bool = False,
    ) -> None:  # fmt: skip
        self._schema, self.numbers = schema, tuple(numbers)
        self._stored = stored_schema(schema, key)
        self._plain_codec = rows_codec(schema, key)
        self._choice = None if plain or not self._stored.names else PackingChoice(self._stored, never)
        self._first: list[pa.RecordBatch] = []  # rows until there are enough of them for packing
        self._first_bytes = self._first_rows = 0
        self._longest = 0
        self._page_bytes = page_bytes
        self._enough = 0 if large else PACKED_FROM
        self.all_added = False
        """Set this once all rows of the build were added. A decision before allows for other values."""
        self._packing: Packing | None = None
        self._decided = plain

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows into account. Rows that come after the decision do not change it."""
        if self._decided or self._choice is None:
            return
        batch = batch.select(self._stored.names)
        lengths = self._plain_codec.lengths(batch)
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        if self._first_bytes < self._enough or not self._first_rows:
            per_row = 13 if self._plain_codec.variable else 9  # key, flag and, if rows vary in length, start
            self._first_bytes += int(lengths.sum()) + per_row * batch.num_rows
            self._first_rows += batch.num_rows
            self._first.append(batch)
            if self._first_bytes < self._enough:
                return
            for one in self._first:
                self._choice.add(one)
            self._first = []
        else:
            self._choice.add(batch)

    @property
    def packing(self) -> Packing | None:
        """How columns are packed; None if rows are plain. The first call decides."""
        if not self._decided:
            self._decided, self._first = True, []
            if self._choice is not None and self._first_bytes >= self._enough:
                number_of = dict(zip(self._schema.names, self.numbers, strict=True))
                stored = [number_of[name] for name in self._stored.names]
                head = 13  # packed rows begin with their length, and those of an index have R's key
                growth = PageLayout(self._page_bytes, 0).largest_row() - self._longest - head
                self._packing = self._choice.choose(stored, more=not self.all_added, growth=max(0, growth))
            self._choice = None
        return self._packing

    @property
    def properties(self) -> dict[str, str]:
        """What the manifest says of a packed relation in addition to its packing."""
        if self.packing is None:
            return {}
        return {PLAIN_ROW_BYTES: f"{self._first_bytes / max(1, self._first_rows):.1f}"}

    def codec(self, key: KeyCodec) -> RowCodec:
        """Return the codec of rows in the order of a key: R's own, or that of a secondary index. This decides."""
        return rows_codec(self._schema, key, self.packing, self.numbers)
