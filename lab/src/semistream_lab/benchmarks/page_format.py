"""Why pages are laid out as they are: what it costs to get rows out of them, against Arrow's own containers.

The task is the same each time: some 19 000 rows of 128 bytes, wanted from anywhere in many pages.
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
    """Return rows of 128 bytes: an ``id`` counting from ``first`` and fifteen numbers."""
    generator = np.random.default_rng((seed, first))
    numbers = generator.integers(0, 2**60, (COLUMNS, count))
    columns = [pa.array(np.arange(first, first + count))] + [pa.array(column) for column in numbers]
    return pa.RecordBatch.from_arrays(columns, names=["id", *(f"v{i}" for i in range(COLUMNS))])


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median time of ``rounds`` calls, after one that does not count."""
    work()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def bench_checksum(page_bytes: int, rounds: int) -> dict[str, float]:
    """Return bytes a second that one core verifies, of pages in its cache and of pages in memory."""
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
    """Time ways to get rows out of pages.

    Parameters
    ----------
    relation
        Made of `sample_rows`.
    rounds
        Each time is the median of so many.

    Returns
    -------
    dict
        ``ipc_page_decode_seconds``: one page of 512 rows in Arrow's IPC format, made into a batch.
        ``ipc_take_seconds``: all pages decoded, and the wanted rows taken out of their chunks.
        ``of_which_take_seconds``: the second half of that.
        ``gather_seconds``: the wanted rows decoded straight out of as many bytes of our pages.
        Also ``rows`` wanted and ``pages`` of each kind.
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
