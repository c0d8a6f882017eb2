"""Rewrites pages of packed rows in earlier layouts as pages of rows in the layout that R shows now.

Packed cells are not copied one by one. Rows are unpacked, mapped to the other layout like plain rows
(`page_transcoding`), and packed again. The result has the same bytes as rows that were written in the new layout,
because a column is packed in the same way in all layouts. Only if its type became one that is not packed, it is plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.pages.page_layout import HEADER, PageLayout, pack_pages, page_keys, page_rows
from semistream.relation.pages.page_transcoding import transcode_pages
from semistream.relation.pages.row_mapping import RowMapping, map_rows
from semistream.relation.rows.fitting import as_type, null_array
from semistream.relation.rows.row_cells import Rows
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["PackedMapping"]

_ESCAPED = 6 + 16
"""Maximum bytes of an escaped number: what identifies it, and its value."""


class PackedMapping:
    """The mapping of packed rows of several source layouts to one target; for the parameters see `map_rows`."""

    def __init__(
        self,
        sources: Sequence[tuple[RowCodec, Sequence[int]]],
        target: RowCodec,
        defaults: Sequence[Mapping[int, pa.Scalar]],
    ) -> None:
        self._sources, self._target = [codec for codec, _ in sources], target
        self._plain = [RowCodec(codec.schema) for codec in self._sources]
        self._plain_target = RowCodec(target.schema)
        named = [(plain, places) for plain, (_, places) in zip(self._plain, sources, strict=True)]
        self.mapping: RowMapping = map_rows(named, self._plain_target, defaults)
        """How plain rows are mapped."""
        self._arrays = frozen(self.mapping.heads), frozen(self.mapping.slots), frozen(self.mapping.templates)
        codecs = [*self._sources, target]
        self.heads = np.array([[0 if one.variable else one.stride, one.stride] for one in codecs], np.int64)
        """As `RowMapping.heads`, of packed rows."""
        self.growth = np.array(
            [self._growth(*one, given) for one, given in zip(sources, defaults, strict=True)], np.int64
        )
        """For each source: maximum bytes by which a row becomes longer."""

    def _growth(self, source: RowCodec, places: Sequence[int], given: Mapping[int, pa.Scalar]) -> int:
        target = self._target
        added = [at for at, place in enumerate(places) if place < 0]
        least = target.stride
        if added:
            fields = [target.schema.field(at) for at in added]
            values = [
                as_type(pa.repeat(given[at], 1), field.type) if at in given else null_array(1, field.type)
                for at, field in zip(added, fields, strict=True)
            ]
            codec = RowCodec(pa.schema(fields), target.packings)
            least += int(codec.lengths(pa.RecordBatch.from_arrays(values, schema=codec.schema))[0]) - codec.stride
        numbers_packed_now = sum(
            place >= 0 and _is_packed(target, at) and not _is_packed(source, place) for at, place in enumerate(places)
        )
        return max(0, least + _ESCAPED * numbers_packed_now - source.stride)

    def rewrite(self, pages: Bytes, source: int, frames: Bytes) -> int:
        """Write pages of one source into frames; return the slot of a value that does not fit its type, or -1."""
        keys, flags, starts = page_keys(pages, int(self.heads[source, 0]))
        rows, slot = self._mapped(source, keys, flags, pages.reshape(-1), starts)
        if slot < 0:
            breaks = np.append(0, np.cumsum(page_rows(pages)))
            layout = PageLayout(frames.shape[1], int(self.heads[-1, 0]))
            frames[:] = pack_pages(layout, keys, flags, rows, breaks)
            frames[:, :12] = pages[:, :12]
        return slot

    def _mapped(self, source: int, keys: Ints, flags: Bytes, data: Bytes, starts: Ints) -> tuple[Rows, int]:
        """Return rows of a source as rows of the target."""
        codec, plain, wanted = self._sources[source], self._plain[source], self._plain_target
        rows = plain.encode(codec.decode(data, starts))
        stride = 0 if plain.variable else plain.stride
        size = HEADER + 32 + (9 if stride else 13) * keys.size + int(rows.lengths.sum())
        more = keys.size * (int(self.mapping.growth[source]) + 4)
        before, after = _whole(size), _whole(size + more)
        room = np.zeros((1, after), np.uint8)
        one = pack_pages(PageLayout(before, stride), keys, flags, rows, np.array([0, keys.size]))
        room[:, after - before :] = one
        _, slot = transcode_pages(room.reshape(-1), 1, after, before, frozen(np.array([source])), *self._arrays)
        if slot >= 0:
            return rows, slot
        found = page_keys(room, 0 if wanted.variable else wanted.stride)[2]
        return self._target.encode(wanted.decode(room.reshape(-1), found)), -1


def _is_packed(codec: RowCodec, at: int) -> bool:
    return codec.schema.field(at).name in codec.packings


def _whole(size: int) -> int:
    return (size + 7) & ~7
