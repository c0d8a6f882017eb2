"""Bytes that follow writes for a commit that changes 1 % of the rows, against the bytes of a build.

``python tests/relation/followed/bytes_written.py --rows 10000000``
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import semistream
from semistream.core.units import format_bytes
from semistream.relation.followed.follower import Step

AT_ONCE = 250_000


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of about 100 bytes, in the order of their keys."""
    chance = np.random.default_rng(0)
    for begin in range(0, rows, AT_ONCE):
        ids = np.arange(begin, min(begin + AT_ONCE, rows))
        text = pa.py_buffer(chance.integers(0, 256, (ids.size, 80), np.uint8))
        blob = pa.Array.from_buffers(pa.binary(80), ids.size, [None, text])
        yield pa.record_batch({"id": ids, "price": chance.random(ids.size), "text": blob.cast(pa.binary())})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="512MB")
    asked = parser.parse_args()
    steps: list[Step] = []

    def follow(table: Path, path: Path) -> None:
        semistream.follow(table, path, key="id", memory=asked.memory, report=steps.append)
        one = steps[-1]
        share = one.bytes_written / steps[0].bytes_written
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(
            f"{one.operation}: {one.upserted:,} rows, {format_bytes(one.bytes_written)} ({share:.1%} of a build) in "
            f"{one.seconds:.1f} s; peak memory of the process so far {format_bytes(peak)}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        table, path = Path(folder) / "table", Path(folder) / "r"
        for number, batch in enumerate(batches(asked.rows)):
            write_deltalake(table, pa.table(batch), mode="append" if number else "error")
        follow(table, path)
        middle, share = asked.rows // 2, asked.rows // 100
        DeltaTable(table).update({"price": "price + 1"}, predicate=f"id >= {middle} AND id < {middle + share}")
        follow(table, path)
        DeltaTable(table).update({"price": "price + 1"}, predicate="id % 100 = 7")
        follow(table, path)


if __name__ == "__main__":
    main()
