"""The reason for the page layout: the cost of decoding rows from our pages, compared with Arrow's own containers.

The task is always the same: decode about 19 000 rows of 128 bytes from random places in many pages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.relation.storage.checksum import seal, verify

__all__ = ["bench_checksum", "bench_format", "median_seconds", "sample_rows"]

COLUMNS = 15
PAGES_OF_512_ROWS = 2000
ROWS_WANTED = 19_000


def sample_rows(first: int, count: int, seed: int = 0) -> pa.RecordBatch:
    """Return rows of 128 bytes: an ``id`` that counts from ``first``, and fifteen numbers."""
    generator = np.random.default_rng((seed, first))
    numbers = generator.integers(0, 2**60, (COLUMNS, count))
    columns = [pa.array(np.arange(first, first + count))] + [pa.array(column) for column in numbers]
    return pa.RecordBatch.from_arrays(columns, names=["id", *(f"v{i}" for i in range(COLUMNS))])


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median time of ``rounds`` calls, after one that is not counted."""
    work()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def bench_checksum(page_bytes: int, rounds: int) -> dict[str, float]:
    """Return the bytes per second that one core verifies, for pages in its cache and for pages in memory."""
    rates = {}
    for place, size in (("cached", 1 << 20), ("in_memory", 256 << 20)):
        frames = np.random.default_rng(0).integers(0, 256, (size // page_bytes, page_bytes), dtype=np.uint8)
        ids = np.arange(len(frames))
        seal(frames, 0)
        rates[f"{place}_bytes_per_second"] = frames.nbytes / median_seconds(
            lambda frames=frames, ids=ids: verify(frames, ids),  # type: ignore[misc]
            rounds if place == "in_memory" else rounds * 50,
        )
    return rates


def bench_format(relation: Relation, rounds: int = 7) -> dict[str, float]:
    """Measure methods of decoding rows from pages.

    Parameters
    ----------
    relation
        A relation built from `sample_rows`.
    rounds
        Number of rounds; each time is the median over them.

    Returns
    -------
    dict
        ``ipc_page_decode_seconds``: decode one page of 512 rows in Arrow's IPC format into a batch.
        ``ipc_take_seconds``: decode all pages, and take the requested rows from their chunks.
        ``of_which_take_seconds``: the second step alone.
        ``gather_seconds``: decode the requested rows directly from the same number of bytes of our pages.
        Also the number of requested ``rows``, and the number of ``pages`` of each kind.
    """
    generator = np.random.default_rng(3)
    schema = sample_rows(0, 1).schema
    total = PAGES_OF_512_ROWS * 512
    buffers = [sample_rows(512 * i, 512).serialize() for i in range(PAGES_OF_512_ROWS)]
    wanted = generator.integers(0, total, ROWS_WANTED)

    def decode_page() -> pa.RecordBatch:
        return pa.ipc.read_record_batch(buffers[7], schema)

    def decode_all() -> pa.Table:
        return pa.Table.from_batches([pa.ipc.read_record_batch(buffer, schema) for buffer in buffers])

    table, indices = decode_all(), pa.array(wanted)
    one_page = median_seconds(decode_page, rounds * 50)
    taking = median_seconds(lambda: table.take(indices), rounds)
    decoding = median_seconds(decode_all, rounds)

    count = min(relation.page_count, total * 128 // relation.page_bytes)
    frames = relation.frames(count)
    relation.read(np.arange(count), frames)
    starts = page_keys(frames, relation.layout.stride)[2]
    chosen = starts[generator.integers(0, starts.size, ROWS_WANTED)]
    flat = frames.reshape(-1)
    return {
        "rows": ROWS_WANTED,
        "ipc_pages": PAGES_OF_512_ROWS,
        "pages": count,
        "ipc_page_decode_seconds": one_page,
        "ipc_take_seconds": decoding + taking,
        "of_which_take_seconds": taking,
        "gather_seconds": median_seconds(lambda: relation.rows(flat, chosen), rounds),
    }
