"""`semistream bench device`: does reading through a relation cost more than raw reads?

The benchmark builds a relation with rows of 128 bytes. It reads the pages by several methods in turn, in one run: raw,
and through ``Relation.read``. Raw reads have the same number of requests in flight, the same size and the same flags,
but no checksums and no code of the relation. The raw rate is the rate of the fastest raw method.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Ints
from semistream.core.machine import describe_machine
from semistream.core.units import parse_bytes
from semistream.relation.devices import transfers
from semistream.relation.devices.device import Frames
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.devices.reader import Method, PageReader
from semistream.relation.relation import Relation
from semistream_lab.benchmarks.page_format import bench_checksum, bench_format, sample_rows

__all__ = ["bench_device"]

ROW_BYTES = 128
SECONDS = 0.15
"""Approximate seconds per measurement; fewer pages are read from a slow disk."""
SCAN_CALL = 16 << 20
"""Bytes per call of a scan, raw or through the relation."""

Read = Callable[[Ints, Frames], object]


def bench_device(
    path: str | os.PathLike[str] | None = None,
    size: int | str = "1GB",
    page_bytes: int = 8192,
    depth: int = 16,
    *,
    rounds: int = 11,
    formats: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure raw reads, and reads through a relation that is built for this and removed afterwards.

    Parameters
    ----------
    path
        Directory on the disk to measure. Default: the directory of temporary files.
    size
        Bytes of the relation. If it is too small, a cache below the file system answers instead of the disk.
    page_bytes, depth
        As for `semistream.relation.devices.file_device.FileDevice`.
    rounds
        Number of rounds; each number is the median over them. The methods take turns within a round.
    formats
        Also measure how fast rows are decoded from pages.
    progress
        Called with a description of the current step.

    Returns
    -------
    dict
        Ready for JSON. ``random_ratio`` and ``sequential_ratio`` are the rate through the relation divided by the raw
        rate; ``random`` and ``sequential`` are the rates behind them.
    """
    rows = parse_bytes(size) // ROW_BYTES
    if rows < 10_000:
        raise ValueError(f"size {size!r} is {rows} rows of {ROW_BYTES} bytes; give at least 10000 rows, '2MB'")
    check_at_least(1, rounds=rounds)
    with tempfile.TemporaryDirectory(dir=path, prefix="semistream-bench-") as folder:
        progress(f"writing a relation of {rows} rows")
        batches = (sample_rows(first, min(65536, rows - first)) for first in range(0, rows, 65536))
        reader = pa.RecordBatchReader.from_batches(sample_rows(0, 1).schema, batches)
        Relation.build(reader, Path(folder) / "relation", key="id", page_size=page_bytes, encoding="plain").close()
        with Relation.open(Path(folder) / "relation", depth=depth) as relation:
            device = relation.device
            assert isinstance(device, FileDevice)
            profile = device.measure()
            result: dict[str, Any] = {
                "machine": describe_machine(Path(folder)),
                "settings": {
                    "relation_bytes": relation.nbytes,
                    "page_bytes": page_bytes,
                    "depth": depth,
                    "direct": device.direct,
                    "method": device.method,
                    "rounds": rounds,
                },
                "profile": {
                    "seek_seconds": profile.seek_seconds,
                    "transfer_seconds": profile.transfer_seconds,
                    "random_reads_per_second": profile.random_reads_per_second,
                    "sequential_bytes_per_second": profile.sequential_bytes_per_second,
                },
            }
            progress("random reads")
            reads = int(min(20_000, max(64, profile.random_reads_per_second * SECONDS), relation.page_count))
            result["random"] = random = _random(relation, device, reads, rounds)
            progress("sequential reads")
            result["sequential"] = sequential = _sequential(relation, device, rounds)
            progress("ways to keep reads in flight")
            result["in_flight"] = _ways(device, reads, max(3, rounds // 2))
            if formats:
                progress("rows out of pages")
                result["format"] = bench_format(relation, rounds)
                result["checksum"] = bench_checksum(page_bytes, rounds)
    result["random_ratio"] = random["relation"] / random["raw"]
    result["sequential_ratio"] = sequential["relation"] / sequential["raw"]
    return result


@contextlib.contextmanager
def raw_reads(
    device: FileDevice, method: Method, depth: int | None = None, request_bytes: int | None = None
) -> Iterator[Read]:
    """Yield a function that reads pages of the device's files without verifying them."""
    flags = os.O_RDONLY | (os.O_DIRECT if device.direct else 0)
    reader = PageReader(
        [os.open(path, flags) for path in device.paths],
        np.array([0, device.page_count]),
        np.zeros(1, np.uint64),
        device.page_bytes,
        depth or device.depth,
        method,
        request_bytes=request_bytes,
    )

    def read(pages: Ints, frames: Frames) -> None:
        outcome, report = reader.transfer(pages, frames, verify=False)
        if outcome != transfers.DONE:
            raise OSError(int(report[1]), f"raw read failed with outcome {outcome}")

    try:
        with reader.in_use():
            yield read
    finally:
        reader.close()


def _medians(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median rate of each contestant.

    The order rotates from round to round.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for name in contestants:
        contestants[name]()  # compile and warm up
    names = list(contestants)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            rates[name].append(contestants[name]())
    return {name: statistics.median(of) for name, of in rates.items()}


def _raw_methods(device: FileDevice) -> list[Method]:
    return [device.method, "threads"] if device.method != "threads" else ["threads"]


def _random(relation: Relation, device: FileDevice, reads: int, rounds: int) -> dict[str, float]:
    """Return pages per second: raw by each method, and through the relation."""
    generator = np.random.default_rng(1)
    frames = relation.frames(reads)
    frames[:] = 0  # touch the memory now, so that no read waits for it

    def timed(read: Read) -> Callable[[], float]:
        def run() -> float:
            pages = generator.permutation(relation.page_count)[:reads]
            begin = time.perf_counter()
            read(pages, frames)
            return reads / (time.perf_counter() - begin)

        return run

    with contextlib.ExitStack() as stack:
        contestants = {
            f"raw_{method}": timed(stack.enter_context(raw_reads(device, method))) for method in _raw_methods(device)
        }
        rates = _medians(contestants | {"relation": timed(relation.read)}, rounds)
    return {"raw": max(rate for name, rate in rates.items() if name.startswith("raw"))} | rates


def _sequential(relation: Relation, device: FileDevice, rounds: int) -> dict[str, float]:
    """Return bytes per second of scans: raw with several request sizes, and through the relation."""
    generator = np.random.default_rng(2)
    page_bytes = relation.page_bytes
    span = min(relation.page_count, 16 * SCAN_CALL // page_bytes)

    frames = relation.frames(min(span, max(1, SCAN_CALL // page_bytes)))
    frames[:] = 0

    def timed(read: Read) -> Callable[[], float]:
        def run() -> float:
            first = int(generator.integers(0, relation.page_count - span + 1))
            begin = time.perf_counter()
            for at in range(first, first + span, len(frames)):
                pages = np.arange(at, min(at + len(frames), first + span))
                read(pages, frames[: pages.size])
                seconds = time.perf_counter() - begin
                if seconds > 2 * SECONDS:  # enough on a slow disk
                    break
            return float((pages[-1] + 1 - first) * page_bytes / seconds)

        return run

    with contextlib.ExitStack() as stack:
        contestants = {
            f"raw_{method}_{kib}KiB": timed(stack.enter_context(raw_reads(device, method, request_bytes=kib << 10)))
            for method in _raw_methods(device)
            for kib in (256, 1024)
        }
        contestants[f"raw_{device.method}"] = timed(stack.enter_context(raw_reads(device, device.method)))
        rates = _medians(contestants | {"relation": timed(relation.read)}, rounds)
    return {"raw": max(rate for name, rate in rates.items() if name.startswith("raw"))} | rates


def _ways(device: FileDevice, reads: int, rounds: int) -> dict[str, float]:
    """Return random pages per second for each method of keeping several requests in flight.

    The results explain which method the device uses.
    """
    generator = np.random.default_rng(4)
    frames = device.allocate(reads)
    frames[:] = 0

    def timed(read: Read, share: int) -> Callable[[], float]:
        def run() -> float:
            pages = generator.permutation(device.page_count)[: max(1, reads // share)]
            begin = time.perf_counter()
            read(pages, frames)
            return pages.size / (time.perf_counter() - begin)

        return run

    with contextlib.ExitStack() as stack:
        contestants = {"python_threads_8": timed(_python_threads(device, stack, 8), 3)}
        for method in _raw_methods(device):
            for depth in (1, 4, 8, 16, 32):
                read = stack.enter_context(raw_reads(device, method, depth))
                contestants[f"{method}_{depth}"] = timed(read, 4 if depth == 1 else 1)
        return _medians(contestants, rounds)


def _python_threads(device: FileDevice, stack: contextlib.ExitStack, threads: int) -> Read:
    """Return the simplest method: threads that call ``os.preadv`` for one page after another."""
    file = os.open(device.paths[0], os.O_RDONLY | (os.O_DIRECT if device.direct else 0))
    stack.callback(os.close, file)

    def read(pages: Ints, frames: Frames) -> None:
        def share(begin: int) -> None:
            for i in range(begin, pages.size, threads):
                os.preadv(file, [frames[i]], int(pages[i]) * device.page_bytes)

        workers = [threading.Thread(target=share, args=(begin,)) for begin in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return read
