"""Versions of rows of a history in one arena, by key and time.

A place holds one version of a key, and the times at which it is the answer; or the times at which R has no version.
So a key with thousands of versions takes no more room than those of its versions that tuples request. Until pages
are read, a request has a place of its own. Requests for the same version are merged afterwards.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bools, Bytes, Ints, Slots
from semistream.core.compiled import Int, frozen
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.array_source import Arrays
from semistream.structures.hot import hot_version_kernels as kernels
from semistream.structures.hot.hot_row_kernels import ABSENT, FREE, IN_USE, KNOWN, SOON
from semistream.structures.hot.hot_rows import HotRows
from semistream.structures.hot.hot_version_kernels import ALIAS, Spans
from semistream.structures.hot.row_search import WantedRows
from semistream.structures.hot.version_stream import stream_versions
from semistream.structures.read_plan import ReadPlan

__all__ = ["HotVersions"]

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class HotVersions(HotRows):
    """An arena of versions, each with the times at which it is valid.

    No place has several rows. Call `number_at` instead of `number`, and `merge` after rows were brought.
    """

    FORMAT = "hot versions 1"
    bytes_per_key = HotRows.bytes_per_key + 16

    def __init__(
        self, codec: RowCodec, keys: int, rows: int, row_bytes: float = 0.0, *, unique: bool = True,
        aging: float = 48.0, arrays: Arrays | None = None,
    ) -> None:  # fmt: skip
        assert unique, "a place has one row"
        super().__init__(codec, keys, rows, row_bytes, unique=True, aging=aging, arrays=arrays)
        own = arrays or self._elastic
        assert own is not None
        self._spans = Spans(own("since", keys, np.int64), own("until", keys, np.int64))
        self._times: Ints = np.empty(0, np.int64)
        """Times of the keys that are being numbered."""
        self._looked_ahead = False

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(array.nbytes for array in self._spans)

    def number_at(self, keys: Ints, times: Ints, valid: Bools, numbers: Slots, coming: int = 0) -> tuple[int, int]:
        """Write the number of each key at its time; see `number`."""
        self._times, self._looked_ahead = frozen(times), False
        done, hits = self.number(keys, valid, numbers, coming)
        if self._looked_ahead:
            # Two places may cover a time until the second has been read. Evictions change which of them is found, so a
            # place that was marked need not be the one that got the tuple.
            self._t.known[:] &= np.uint8(~SOON & 0xFF)
        return done, hits

    def _number_some(self, keys: Ints, valid: Bools, numbers: Slots) -> tuple[Int, Int]:
        self._times = self._times[self._times.size - keys.size :]
        return kernels.number(self._t, self._spans, keys, self._times, valid, self._sketch, numbers)

    def _look_ahead(self, keys: Ints, valid: Bools, seen: Slots) -> Int:
        return kernels.look_ahead(self._t, self._spans, keys, self._times[: keys.size], valid, seen)

    def _make_place(self, keys: Ints, valid: Bools, room: Slots, coming: int) -> bool:
        self._looked_ahead = True
        self._times = self._times[self._times.size - keys.size :]
        return super()._make_place(keys, valid, room, coming)

    def times_of(self, numbers: Slots) -> Ints:
        """Return a time at which each number's version is the answer; the tuple's time, if the version is unknown."""
        return self._spans.since[numbers]

    def bring(self, numbers: Slots, wanted: WantedRows, begin: int, read: Ints, frames: Bytes) -> tuple[int, bool]:
        assert wanted.versions is not None
        following, fields = wanted.versions
        flat = frames.reshape(-1)
        while True:
            reached, fitted = kernels.copy_versions(
                self._t, self._spans, self._rows.table, self._rows.width, frozen(flat), frozen(flat.view(np.int64)),
                wanted.layout.frame_bytes, wanted.layout.stride, frozen(fields), frozen(read), frozen(wanted.pages),
                frozen(wanted.owners), frozen(wanted.keys), frozen(following), frozen(numbers), begin,
            )  # fmt: skip
            begin = int(reached)
            if fitted or not self._let_some_go():
                return begin, bool(fitted)

    def stream(self, ring: RingReader, numbers: Slots, wanted: WantedRows, plan: ReadPlan) -> bool:
        return stream_versions(self._t, self._spans, self._rows, ring, numbers, wanted, plan, self._let_some_go)

    def has_none(self, numbers: Slots, following: Ints) -> None:
        """Record that R has no version of these keys before their next one begins, at ``following``."""
        self._spans.since[numbers] = _EARLIEST
        self._spans.until[numbers] = np.where(following == _LATEST, _LATEST, following - 1)
        self._t.known[numbers] = (self._t.known[numbers] & np.uint8(IN_USE)) | np.uint8(ABSENT)

    def in_use(self, numbers: Slots) -> Slots:
        """Return the numbers whose places were not merged into other places."""
        return np.compress(self._t.known[numbers] & np.uint8(KNOWN) != FREE, numbers)

    def merge(self, numbers: Slots) -> None:
        """Merge requests for the same version; ``numbers``, those of all tuples, are changed accordingly."""
        kernels.merge(self._t, numbers)

    def reset(self, numbers: Slots) -> None:
        super().reset(numbers[self._t.known[numbers] & np.uint8(KNOWN) != ALIAS])

    def drop(self, keys: Ints) -> Slots:
        """Forget all versions of some keys, even if tuples have their numbers; return these numbers."""
        places = np.flatnonzero((self._t.known & np.uint8(KNOWN) != FREE) & np.isin(self._t.key, keys))
        self._rows.free(kernels.drop(self._t, frozen(places)))
        return places.astype(np.int32)

    def forget(self, keys: Ints) -> None:
        self.drop(keys)

    def check(self) -> None:
        super().check()
        held = self._t.known & np.uint8(KNOWN) != FREE
        assert np.all(self._spans.since[held] <= self._spans.until[held]), "a version ends before it begins"
        assert not np.any(self._t.known & np.uint8(KNOWN) == ALIAS), "requests were not merged"
