"""How long the requests of a micro-batch take when nothing else is done: no join with R in that store can be below.

``requests_alone.py s3://bucket/bench/R PAGES``: so many pages of R, anywhere in it, are brought into memory, all asked
for at once, as far apart in one request as each of some gaps allows; nothing is verified, kept or searched.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from semistream.relation.devices.store_device import StoreDevice
from semistream.relation.relation import Relation

GAPS = (0, 1, 2, 3, 4, 6, 8, 12)
"""Pages that nobody wants between two that are brought by one request."""
TURNS = 5


def main(address: str, count: int) -> None:
    with Relation.open(address) as relation:
        device = relation.device
        assert isinstance(device, StoreDevice)
        generator, frames = np.random.default_rng(1), device.allocate(count)
        samples = [np.sort(generator.choice(device.page_count, count, replace=False)) for _ in range(TURNS)]
        seconds: dict[int, list[float]] = {gap: [] for gap in GAPS}
        told: dict[int, tuple[int, int]] = {}
        for pages in samples:
            for gap in GAPS:
                began = time.perf_counter()
                coming = device._fetch(pages, frames, np.arange(count), gap=gap * device.page_bytes, keep=False)
                coming.wait()
                seconds[gap].append(time.perf_counter() - began)
                told[gap] = coming.requests, coming.fetched_bytes
    for gap, taken in seconds.items():
        requests, fetched = told[gap]
        print(
            f"gap {gap:2}: {statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f}), "
            f"{requests:,} requests, {fetched / count / device.page_bytes:.1f} times the bytes wanted"
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
