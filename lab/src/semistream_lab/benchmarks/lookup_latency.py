"""`semistream bench lookup`: the latency of `Relation.lookups`, for calls of one key, of some and of many.

A call is timed in three states of the cache:

* ``cached``: all keys of the call are in the cache.
* ``warm``: keys are drawn with the skew of the stream, after the cache was filled by such keys. Some must be read.
* ``cold``: the cache has none of the keys. They are drawn uniformly, and read past the page cache.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Ints
from semistream.core.machine import describe_machine
from semistream.core.units import check_memory
from semistream.lookups import Lookups
from semistream.relation.relation import Relation
from semistream_lab.benchmarks.join_rates import code_version
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset
from semistream_lab.benchmarks.peers.our_joins import FOLDER, OurJoin
from semistream_lab.workloads.workload import zipf

__all__ = ["STATES", "LookupSpec", "bench_lookup"]

STATES = ("cached", "warm", "cold")
_FILL = 100_000  # keys per call while the cache is filled


@dataclass(frozen=True)
class LookupSpec:
    """What to measure.

    Parameters
    ----------
    rows, row_bytes
        Rows of R, and bytes of values per row, including the key.
    memory
        Budget of the look-ups.
    exponent
        Skew of the keys of warm calls.
    sizes
        Keys per call.
    calls
        Measured calls of each size and state.
    fill
        Keys that fill the cache first. None: four times the number of rows that fit into the memory.
    """

    rows: int = 10_000_000
    row_bytes: int = 128
    memory: str = "64MB"
    exponent: float = 1.0
    sizes: tuple[int, ...] = (1, 100, 10_000)
    calls: int = 200
    fill: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, rows=self.rows, calls=self.calls, **{"size of a call": min(self.sizes, default=0)})
        check_memory(self.memory)

    def data(self, directory: Path) -> Dataset:
        """Return R's files, which `bench peers` uses too."""
        return Dataset(str(directory), self.rows, self.row_bytes, self.seed)


def bench_lookup(spec: LookupSpec, directory: Path, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure; return the latencies, ready for JSON: ``latency[state][size]`` has ``p50`` and ``p99`` in seconds."""
    data = spec.data(directory)
    note("R")
    data.write()
    OurJoin.prepare(data)
    found: dict[str, dict[str, Any]] = {state: {} for state in STATES}
    with Relation.open(data.place / FOLDER) as relation:
        keys = _Keys(spec, relation)
        for size in spec.sizes:
            for state in STATES:
                note(f"{state}, {size:,} keys")
                with Lookups(relation, memory=spec.memory) as lookups:
                    found[state][str(size)] = _measured(spec, state, size, keys, lookups)
        stored = relation.nbytes
    return {
        "latency": found,
        "relation": {"rows": spec.rows, "bytes": stored},
        "spec": asdict(spec),
        "machine": describe_machine(directory),
        "commit": code_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


class _Keys:
    """Keys of the stream, and any keys of R."""

    def __init__(self, spec: LookupSpec, relation: Relation) -> None:
        self._spec = spec
        self.most = relation.row_count
        self._random = np.random.default_rng(spec.seed)

    def skewed(self, count: int) -> Ints:
        """Return keys as the stream has them: the same sequence in each call."""
        workload = zipf(
            self._spec.rows, count, self._spec.exponent, "random", row_bytes=self._spec.row_bytes, seed=self._spec.seed
        )
        return np.concatenate([batch.column(KEY).to_numpy() for batch in workload.stream.batches()])

    def any(self, count: int) -> Ints:
        """Return random keys of R."""
        return self._random.integers(1, self.most + 1, count)


def _measured(spec: LookupSpec, state: str, size: int, keys: _Keys, lookups: Lookups) -> dict[str, Any]:
    calls = max(1, spec.calls if size <= 1_000 else spec.calls // 4)
    if state == "warm":
        each = spec.row_bytes
        fill = spec.fill if spec.fill is not None else 4 * lookups.budget.total // each
        stream = keys.skewed(fill + calls * size)
        for begin in range(0, fill, _FILL):
            lookups.get(stream[begin : min(begin + _FILL, fill)])
        drawn = stream[fill:]
    else:
        drawn = keys.any(calls * size)
    if state == "cached":
        drawn = np.tile(drawn[:size], calls)
        lookups.get(drawn[:size])
    before = lookups.stats
    times = _timed(lookups, drawn.reshape(calls, size))
    after = lookups.stats
    return {
        "p50": float(np.quantile(times, 0.5)),
        "p99": float(np.quantile(times, 0.99)),
        "mean": float(times.mean()),
        "calls": calls,
        "hit_ratio": (after.cache_hits - before.cache_hits) / (calls * size),
        "pages_a_call": (after.pages_read - before.pages_read) / calls,
        "reserved": lookups.budget.peak,
    }


def _timed(lookups: Lookups, calls: Ints) -> NDArray[np.float64]:
    times = np.empty(len(calls))
    for number, keys in enumerate(calls):
        begin = time.perf_counter()
        lookups.get(keys)
        times[number] = time.perf_counter() - begin
    return times
