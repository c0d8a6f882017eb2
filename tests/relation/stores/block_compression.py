"""What block compression would bring to a relation in a bucket: requests, bytes and processor time of a micro-batch.

``python tests/relation/stores/block_compression.py --rows 1000000 --layouts catalogue tpch``

Pages anywhere in R are needed, as a batch needs them that misses its cache. Today each is read alone, or with the
pages between two of them. Here runs of pages are compressed, so whole runs are read and decompressed. In both cases the
gap that is bridged by one request is the one that costs least, given the processor time of a request and of a
megabyte (`docs/object-stores.md`). The time of decompression is measured, everything else is counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.devices.store_device import LONGEST_REQUEST, _requests, _widest_gap
from semistream.relation.relation import Relation
from semistream_lab.workloads.masters import layout, master

CODECS = ("lz4_raw", "zstd")
RUN_BYTES = (64 << 10, 256 << 10, 1 << 20)
SHARES = (0.02, 0.18)
"""Shares of R's pages that a batch needs; 100,000 tuples with a cache of 5 % need 0.18 (docs/object-stores.md)."""
GAPS = (0, 1, 2, 4, 8, 16)
REQUEST_SECONDS, MEGABYTE_SECONDS = 100e-6, 1e-3
"""Processor time of a request, and of each megabyte (docs/object-stores.md)."""


class Found(NamedTuple):
    """What a batch costs."""

    requests: int
    fetched: int
    unpacking: float
    """Seconds of decompression."""

    @property
    def seconds(self) -> float:
        """Processor time."""
        return self.requests * REQUEST_SECONDS + self.fetched / 1e6 * MEGABYTE_SECONDS + self.unpacking


def requests_of(units: Ints, total: int, gap: int, most: int) -> tuple[Ints, Ints]:
    """Return the first and last unit of each request; a unit is a page or a compressed run."""
    bounds = _requests(units, np.array([0, total]), *_widest_gap(units, gap), max(1, most))
    return units[bounds[:-1]], units[bounds[1:] - 1]


def single_pages(pages: Ints, total: int, page_bytes: int) -> Found:
    """Return the cost of reading pages as they are stored today."""

    def found(gap: int) -> Found:
        first, last = requests_of(pages, total, gap, LONGEST_REQUEST // page_bytes)
        return Found(first.size, int((last - first + 1).sum()) * page_bytes, 0.0)

    return min(map(found, GAPS), key=lambda one: one.seconds)


def compressed_runs(pages: Ints, per_run: int, runs: list[bytes], size: int, codec: str) -> Found:
    """Return the cost of reading and decompressing the runs that contain pages."""
    needed = np.unique(pages // per_run)
    sizes = np.array([len(run) for run in runs])
    ends = np.append(0, np.cumsum(sizes))

    def found(gap: int) -> Found:
        first, last = requests_of(needed, len(runs), gap, LONGEST_REQUEST // int(sizes.mean()))
        return Found(first.size, int((ends[last + 1] - ends[first]).sum()), 0.0)

    best = min(map(found, GAPS), key=lambda one: one.seconds)
    begun = time.process_time()
    for run in needed.tolist():
        pa.decompress(runs[run], size, codec=codec)
    return best._replace(unpacking=time.process_time() - begun)


def measured(path: Path, page_bytes: int, generator: np.random.Generator) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table for one relation."""
    stored = np.concatenate([np.fromfile(file, np.uint8) for file in sorted(path.glob("*.pages"))])
    total = stored.size // page_bytes
    needed = {share: np.sort(generator.choice(total, max(1, int(share * total)), replace=False)) for share in SHARES}
    for share, pages in needed.items():
        yield line("single pages", stored.size, 1.0, share, single_pages(pages, total, page_bytes))
    for codec in CODECS:
        for size in RUN_BYTES:
            # The last run is as long as the others, so that each has the same decompressed size.
            padded = np.append(stored, np.zeros(-stored.size % size, np.uint8))
            runs = [pa.compress(padded[at : at + size], codec, asbytes=True) for at in range(0, padded.size, size)]
            ratio = sum(map(len, runs)) / stored.size
            for share, pages in needed.items():
                found = compressed_runs(pages, size // page_bytes, runs, size, codec)
                yield line(f"{codec.removesuffix('_raw')}, {size >> 10} KiB", stored.size, ratio, share, found)


def line(how: str, stored: int, ratio: float, share: float, found: Found) -> tuple[str, ...]:
    """Return a line of the table."""
    return (
        how, f"{stored * ratio / 1e6:.0f} MB", f"{share:.0%}", f"{found.requests:,}", f"{found.fetched / 1e6:.1f} MB",
        f"{1000 * found.unpacking:.0f} ms", f"{1000 * found.seconds:.0f} ms",
    )  # fmt: skip


def main() -> None:
    """Print a table for each layout, packed and plain."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--layouts", nargs="*", default=["catalogue"])
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.layouts:
            source = master(layout(name), given.rows, directory=folder)
            for encoding in ("auto", "plain"):
                path = Path(folder) / f"{name}-{encoding}"
                reader = pa.RecordBatchReader.from_batches(source.schema, source.batches())
                with Relation.build(reader, path, "product_id", encoding=encoding) as relation:
                    page_bytes = relation.page_bytes
                print(f"\n{name}, {given.rows:,} rows, {'packed' if encoding == 'auto' else 'plain'}\n")
                print("| stored as | in the bucket | pages needed | requests | fetched | decompression | CPU time |")
                print("|---|---:|---:|---:|---:|---:|---:|")
                for cells in measured(path, page_bytes, np.random.default_rng(1)):
                    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
