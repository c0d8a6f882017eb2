"""The limit of the device: the pages that must be read, divided by the raw rate of random reads at the best depth.

Consider a cache that knows all frequencies in advance and uses its memory for rows only. It still misses the other keys
of a batch, and their pages must be read. Here these reads cost only the time of the device, without checksums, look-ups
and results. No join that answers each batch separately and reads single pages can be faster.
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
"""Maximum number of random pages per measurement."""


class DeviceLimit(Contestant):
    """The time of a batch is the time of its page reads, at the rate measured in the same round."""

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
        self._frames[:] = 0  # touch the memory now, so that no read waits for it
        keys = ZipfKeys(task.data.rows, task.exponent, task.shape, task.data.seed)
        self._hot = np.sort(keys.hottest(task.memory // task.data.width)) * task.data.stride
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
        """Return the pages of the keys that even the best cache misses."""
        keys = np.unique(batch[KEY].to_numpy())
        keys = keys[self.task.data.present(keys)]
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
