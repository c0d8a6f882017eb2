"""Pages of R that were changed since the files were written.

They are held in memory and replace pages on disk. An update writes each changed page into the overlay, under the same
id. Rows that no longer fit go to new pages, with ids past those of the files. Every read consults the overlay, so it
sees the update; the index says where keys are now. An overlay never changes: an update creates a new one, which shares
the frames. A reader that has the old overlay continues to see R as it was.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.relation.devices.device import Device

__all__ = ["Change", "Overlay"]

_claiming = threading.Lock()


@dataclass(frozen=True)
class Change:
    """What an update of R changed, for holders of copies of R's rows or pages."""

    revision: int
    """`Relation.revision` after the update."""
    keys: Ints
    """key64, ascending, of all keys that were upserted or deleted."""
    pages: Ints
    """Ids, ascending, of the pages whose content has changed."""


@dataclass(frozen=True)
class Overlay:
    """Changed pages by id.

    Parameters
    ----------
    file_pages
        Pages in the files. Ids from here on exist only in the overlay.
    page_count
        Total number of pages.
    ids, slots
        Ids of the changed pages, ascending, and their rows of ``frames``.
    frames
        Their content. Rows from ``used`` on are free. A row that no page uses any longer is dropped when ``frames``
        must grow.
    spare
        For each shard, ids of its pages that have no rows and are not in the index. The shard uses these next. A page
        never moves from shard to shard, because each shard is also read separately.
    claimed
        Number of rows of ``frames`` that are used by all overlays that share them. It exceeds ``used`` if an overlay
        derived from this one was discarded or is not installed yet.
    """

    file_pages: int
    page_count: int
    ids: Ints
    slots: Ints
    frames: Bytes
    used: int
    spare: tuple[Ints, ...]
    claimed: list[int]

    @classmethod
    def empty(cls, device: Device, shards: int) -> Overlay:
        """Return the overlay of an R without updates."""
        none = np.empty(0, np.int64)
        frames = np.empty((0, device.frame_bytes), np.uint8)
        return cls(device.page_count, device.page_count, none, none, frames, 0, (none,) * shards, [0])

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.frames.nbytes + self.ids.nbytes + self.slots.nbytes + sum(one.nbytes for one in self.spare)

    def with_pages(self, shard: int, ids: Ints, frames: Bytes, spare: Ints) -> Overlay:
        """Return the overlay in which pages ``ids`` (ascending) of a shard are ``frames``, and ``spare`` have no rows.

        Both overlays share frames while there is free room that no other overlay has claimed.
        """
        stays = ~np.isin(self.ids, ids, assume_unique=True)
        kept_ids, kept_slots = self.ids[stays], self.slots[stays]
        store, used, claimed = self.frames, self.used, self.claimed
        with _claiming:  # another thread may prepare an update from the same overlay
            is_room = used + len(frames) <= len(store) and claimed[0] == used
            if is_room:
                claimed[0] = used + len(frames)
        if not is_room:
            # Grow by half, so that copying costs a constant number of copies per page.
            store = np.empty(((kept_ids.size + len(frames)) * 3 // 2, frames.shape[1]), np.uint8)
            np.take(self.frames, kept_slots, axis=0, out=store[: kept_ids.size])
            kept_slots, used = np.arange(kept_ids.size), kept_ids.size
            claimed = [used + len(frames)]
        store[used : used + len(frames)] = frames
        all_ids = np.concatenate([kept_ids, ids])
        all_slots = np.concatenate([kept_slots, np.arange(used, used + len(frames))])
        order = np.argsort(all_ids)
        count = max(self.page_count, int(ids.max(initial=-1)) + 1)
        spares = (*self.spare[:shard], np.sort(spare), *self.spare[shard + 1 :])
        return Overlay(
            self.file_pages, count, all_ids[order], all_slots[order], store, used + len(frames), spares, claimed
        )

    def read(self, device: Device, pages: Ints, frames: Bytes) -> None:
        """Read page ``pages[i]`` into ``frames[i]``, from memory if it has changed, otherwise from the device."""
        place = np.searchsorted(self.ids, pages)
        changed = np.zeros(pages.size, bool)
        inside = place < self.ids.size
        changed[inside] = self.ids[place[inside]] == pages[inside]
        if not changed.all():
            self._read_files(device, pages, frames, changed)
        if changed.any():
            frames[: pages.size][changed] = self.frames[self.slots[place[changed]]]

    def _read_files(self, device: Device, pages: Ints, frames: Bytes, changed: NDArray[np.bool_]) -> None:
        in_files = pages < self.file_pages
        wanted = np.flatnonzero(in_files & ~changed)
        begin, end = int(wanted[0]), int(wanted[-1]) + 1
        if in_files[begin:end].all():
            # Changed pages within a run are read needlessly, which is cheaper than splitting the run.
            device.read(pages[begin:end], frames[begin:end])
            return
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        for run in np.split(wanted, breaks):
            device.read(pages[run[0] : run[-1] + 1], frames[run[0] : run[-1] + 1])

    def check(self) -> None:
        """Assert that ids are ascending and within range, and that each has its own row."""
        assert np.all(np.diff(self.ids) > 0), "ids are not ascending"
        assert self.ids.size == 0 or (self.ids[0] >= 0 and self.ids[-1] < self.page_count)
        assert np.unique(self.slots).size == self.ids.size, "two pages share a row"
        assert self.slots.size == 0 or self.slots.max() < self.used <= self.claimed[0] <= len(self.frames)
        assert np.isin(np.arange(self.file_pages, self.page_count), self.ids).all(), "a page is nowhere"
        spare = np.concatenate(self.spare)
        assert np.isin(spare, self.ids).all(), "a spare page is not held"
        assert np.unique(spare).size == spare.size, "a page is spare twice"
