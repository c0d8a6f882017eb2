"""What the device allows: the pages that had to be read, over the raw rate of random pages at its best depth.

A cache that knew all frequencies beforehand, and spent its memory on nothing but rows, would still not have the rest
of a batch's keys: the pages these lie in had to be read. They are read in no time but the device's, without checksums,
look-ups and results; no join can be faster that answers each batch for itself, and reads pages one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.relation import Relation
from semistream.workloads.keys.key_source import ZipfKeys
from semistream_lab.benchmarks.device_rates import Read, raw_reads
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset
from semistream_lab.benchmarks.peers.our_joins import FOLDER, OurJoin

__all__ = ["CONTESTANTS", "DeviceLimit"]

DEPTHS = (8, 16, 32, 64, 128)
MOST_PAGES = 20_000
"""Random pages of one measurement, at most."""


class DeviceLimit(Contestant):
    """A batch takes it the time of its pages, at the rate measured in its turn."""

    id = "device_limit"
    title = "limit of the device"
    kind = "limit"
    bounded = False

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        OurJoin.prepare(data)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._stack = ExitStack()
        self._relation = self._stack.enter_context(Relation.open(task.data.place / FOLDER))
        assert isinstance(self._relation.device, FileDevice)
        self._generator = np.random.default_rng(1)
        self._frames = self._relation.frames(min(MOST_PAGES, self._relation.page_count))
        self._frames[:] = 0  # so that nobody waits for memory
        keys = ZipfKeys(task.data.rows, task.exponent, task.shape, task.data.seed)
        self._hot = np.sort(keys.hottest(task.memory // task.data.format.width))
        self._reads = {
            f"{method}, {depth} deep": self._stack.enter_context(raw_reads(self._relation.device, method, depth))
            for method in dict.fromkeys((self._relation.device.method, "threads"))
            for depth in DEPTHS
        }
        rates = {name: [self._random_rate(read) for _ in range(4)] for name, read in self._reads.items()}
        self._best = max(rates, key=lambda name: float(np.median(rates[name][1:])))
        self._pages = self._batches = 0
        self._in_order: list[float] = []
        self._rates: list[float] = []

    def _random_rate(self, read: Read) -> float:
        pages = self._generator.permutation(self._relation.page_count)[: len(self._frames)]
        begin = time.perf_counter()
        read(pages, self._frames[: pages.size])
        return pages.size / (time.perf_counter() - begin)

    def needed(self, batch: pa.RecordBatch) -> Ints:
        """Return the pages of the keys that not even the best cache has."""
        keys = np.unique(batch[KEY].to_numpy())
        rest = keys[~np.isin(keys, self._hot, assume_unique=True)]
        return np.unique(self._relation.locate(rest).pages)

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError("the device joins nothing")

    def timed(self, batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], object]) -> float:
        pages = self.needed(batch)
        read = self._reads[self._best]
        rate = self._random_rate(read)
        begin = time.perf_counter()
        for at in range(0, pages.size, len(self._frames)):
            some = pages[at : at + len(self._frames)]
            read(some, self._frames[: some.size])
        self._in_order.append(time.perf_counter() - begin)
        self._pages += pages.size
        self._batches += 1
        self._rates.append(rate)
        return pages.size / rate

    def counts(self) -> dict[str, Any]:
        return {
            "pages": self._pages,
            "best_depth": self._best,
            "random_pages_per_second": float(np.median(self._rates)) if self._rates else None,
            "seconds_in_order": self._in_order,
        }

    def close(self) -> None:
        self._stack.close()


CONTESTANTS: list[type[Contestant]] = [DeviceLimit]
