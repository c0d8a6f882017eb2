"""A device whose pages were moved by updates: page ids stay, and a map says where each lies in the files now.

A version of R is the files of its first version, and beside them files with the pages that later versions changed.
Ids of a shard are its own pages, then those that updates added; most are where their number says, so the map lists
only the others.
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
    """A device of several shards with their page maps, over one device of all their files.

    Parameters
    ----------
    device
        Reads the files: of each shard its first file, then those with changed pages.
    maps
        One for each shard.
    delta_pages
        Pages of each shard's files with changed pages, together.
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
        """Return room for pages, as the files' device needs it."""
        return self._device.allocate(frames)

    def read(self, pages: Ints, frames: Frames) -> None:
        """Read pages by id, wherever they are."""
        pages, frames = self._checked(pages, frames)
        if pages.size and not (int(pages.min()) >= 0 and int(pages.max()) < self.page_count):
            raise self._no_such_page(int(pages.max()))
        self._device.read(self._physical(pages), frames)

    def ring(self, frames: Frames, places: Places | None = None) -> AbstractContextManager[RingReader | None]:
        """Have a ring of the files' device, for pages by id."""
        assert places is None, "one map is enough"
        return self._device.ring(frames, Places(self._bases, self._shift, self._changed, self._places))

    def measure(self) -> DeviceProfile:
        """Measure the files' device."""
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
