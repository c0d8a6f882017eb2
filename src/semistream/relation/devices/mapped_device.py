"""A device whose pages were moved by updates: page ids stay the same, and a map gives each page's current place.

A version of R consists of the files of its first version and of files with the pages that later versions changed.
The ids of a shard cover its original pages, followed by the pages that updates added. Most pages are still where
their id says, so the map lists only the others.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.relation.devices.device import Device, DeviceProfile, Frames
from semistream.relation.devices.page_ring import Places
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.storage.page_map import PageMap

__all__ = ["MappedDevice"]


class MappedDevice(Device):
    """A device of several shards with their page maps, on top of one device for all their files.

    Parameters
    ----------
    device
        Reads the files: for each shard its first file, then its files of changed pages.
    maps
        One per shard.
    delta_pages
        For each shard, the total number of pages in its files of changed pages.
    """

    def __init__(self, device: Device, maps: list[PageMap], delta_pages: list[int]) -> None:
        self._device = device
        self.page_bytes = device.page_bytes
        self.frame_bytes = device.frame_bytes
        self.counters = device.counters
        self.simulated, self.merges = device.simulated, device.merges
        ids = np.cumsum([0, *(one.page_count for one in maps)])
        places = np.cumsum([0, *(one.file_pages + more for one, more in zip(maps, delta_pages, strict=True))])
        self.page_count = int(ids[-1])
        self._bases: Ints = ids[:-1].astype(np.int64)
        self._shift: Ints = (places[:-1] - ids[:-1]).astype(np.int64)
        self._changed = np.concatenate([one.changed + base for one, base in zip(maps, ids, strict=False)])
        self._places = np.concatenate(
            [one.places + one.file_pages + base for one, base in zip(maps, places, strict=False)]
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the map."""
        return int(self._changed.nbytes + self._places.nbytes)

    def allocate(self, frames: int) -> Frames:
        """Return frames as the underlying device requires them."""
        return self._device.allocate(frames)

    def read(self, pages: Ints, frames: Frames) -> None:
        """Read pages by id, wherever they are stored."""
        pages, frames = self._checked(pages, frames)
        if pages.size and not (int(pages.min()) >= 0 and int(pages.max()) < self.page_count):
            raise self._no_such_page(int(pages.max()))
        self._device.read(self._physical(pages), frames)

    def ring(self, frames: Frames, places: Places | None = None) -> AbstractContextManager[RingReader | None]:
        """Open a ring of the underlying device, for pages by id."""
        assert places is None, "one map is enough"
        return self._device.ring(frames, Places(self._bases, self._shift, self._changed, self._places))

    def measure(self) -> DeviceProfile:
        """Measure the underlying device."""
        return self._device.measure()

    def _measure_briefly(self) -> DeviceProfile:
        return self._device.profile

    def close(self) -> None:
        """Close the files."""
        self._device.close()

    def _physical(self, pages: Ints) -> Ints:
        shard = np.searchsorted(self._bases, pages, side="right") - 1
        physical = pages + self._shift[shard]
        at = np.searchsorted(self._changed, pages)
        moved: NDArray[np.bool_] = at < self._changed.size
        moved[moved] = self._changed[at[moved]] == pages[moved]
        physical[moved] = self._places[at[moved]]
        return physical
