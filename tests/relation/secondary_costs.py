"""What secondary indexes cost: disk, build, updates, and joins on keys and on indexes, which take turns.

Times are processor time, which other work on the machine changes little.

``python tests/relation/secondary_costs.py --rows 1000000``
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream
from semistream.core.units import format_bytes, format_count
from semistream.relation.relation import Relation
from semistream.workloads import Permutation, ZipfKeys

BATCH = 100_000


def emails(numbers: np.ndarray) -> pa.Array:
    return pa.array([f"user{number}@example.com" for number in numbers.tolist()])


def table(ids: np.ndarray, codes: Permutation, generation: int = 0) -> pa.Table:
    """Return rows of about 130 bytes."""
    letters = np.random.default_rng(generation).integers(97, 123, (ids.size, 80), np.uint8)
    texts = pa.Array.from_buffers(pa.binary(80), ids.size, [None, pa.py_buffer(letters)]).cast(pa.binary())
    return pa.table({"id": ids, "code": codes.apply(ids), "email": emails(ids), "text": texts})


def timed(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def used(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def rates(paths: dict[str, tuple[Path, str, str | None]], rows: int, codes: Permutation, batches: int) -> None:
    """Join the same tuples on each column, taking turns; print rows per second, the median of measured batches."""
    keys = ZipfKeys(rows, 1.0, "random", seed=1)
    joins, found = {}, {name: [] for name in paths}
    for name, (path, column, by) in paths.items():
        relation = Relation.open(path, by=by)
        joins[name] = semistream.create("adaptivejoin", relation, on=column, memory="5%", columns=["text"])
    for number in range(2 * batches):
        numbers = keys.keys(number * BATCH, BATCH)
        batch = pa.record_batch({"id": numbers, "code": codes.apply(numbers), "email": emails(numbers)})
        for name, (_, column, _) in paths.items():
            some = batch.select([column])
            seconds = timed(lambda join=joins[name], some=some: sum(one.num_rows for one in join.process([some])))
            if number >= batches:
                found[name].append(BATCH / seconds)
    first = None
    for name, some in found.items():
        rate = statistics.median(some)
        first = first or rate
        print(f"join on {name}: {format_count(round(rate))} rows/s, {rate / first:.2f}× the first", flush=True)
    for join in joins.values():
        join.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=12)
    asked = parser.parse_args()
    codes = Permutation(asked.rows, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        plain, indexed, text = (Path(folder) / name for name in ("plain", "indexed", "text"))
        rows = table(np.arange(asked.rows), codes)
        built: dict[Path, float] = {}
        for path, key, indexes in ((plain, "id", []), (indexed, "id", ["code"]), (text, "email", [])):
            began = time.process_time()
            Relation.build(rows, path, key, indexes=indexes).close()
            built[path] = time.process_time() - began
        for path in (plain, indexed):
            print(f"{path.name}: {format_bytes(used(path))}, built in {built[path]:.1f} s", flush=True)
        one = np.arange(asked.rows // 2, asked.rows // 2 + asked.rows // 100)
        for name, ids in (("neighbouring rows", one), ("rows anywhere", np.arange(0, asked.rows, 100))):
            for path in (plain, indexed):
                before, change = used(path), table(ids, codes, 1)
                seconds = timed(lambda path=path, change=change: semistream.upsert(path, change))
                print(f"{path.name}: 1 % {name}: {format_bytes(used(path) - before)} in {seconds:.2f} s", flush=True)
                semistream.compact(path)
                semistream.vacuum(path, older_than=-1)
        semistream.Relation.open(indexed).add_index("email")
        rates(
            {
                "the key, an integer": (indexed, "id", None), "an index, an integer": (indexed, "code", "code"),
                "the key, a text": (text, "email", None), "an index, a text": (indexed, "email", "email"),
            },
            asked.rows, codes, asked.batches,
        )  # fmt: skip


if __name__ == "__main__":
    main()
