"""Relations, streams and joins that tests of SSIJ share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import semistream
from semistream.core.clock import VirtualClock
from semistream.core.units import parse_bytes
from semistream.joins.ssij.ssij import Ssij
from semistream.relation.devices.simulated_device import MemoryPages, SimulatedDevice
from semistream.relation.relation import Relation
from semistream.relation.storage.checksum import seal

BETWEEN: dict[str, Any] = {"on": ("low", "high"), "condition": "between"}


def ssij(relation: Relation, **options: Any) -> Ssij:
    """Return a join; a share of R is exact, though R is small."""
    if "memory" in options:
        options["memory"] = parse_bytes(options["memory"], of=relation.nbytes)
    join = semistream.create("ssij", relation, **{"how": "inner", **options})
    assert isinstance(join, Ssij)
    return join


def simulated(relation: Relation, clock: VirtualClock, seek: float = 0.0085, transfer: float = 8e-5) -> Relation:
    """Return the same relation of one shard on a device whose time is virtual."""
    frames = relation.frames(relation.page_count)
    relation.read(np.arange(relation.page_count), frames)
    seal(frames, first_id=0)  # those of a file are bound to its name
    device = SimulatedDevice(MemoryPages(frames), seek_seconds=seek, transfer_seconds=transfer, clock=clock)
    return Relation(
        relation.schema, relation.key, device, relation.indexes, [relation.page_count],
        rows=relation.row_count, unique=relation.unique, clustered=relation.clustered,
    )  # fmt: skip


def zipf_keys(count: int, keys: int, seed: int = 0, exponent: float = 1.0) -> NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), generator.random(count))
    return np.random.default_rng(99).permutation(keys)[np.minimum(ranks, keys - 1)]


def seconds_of(relation: Relation, stream: list[pa.RecordBatch], **options: Any) -> float:
    """Return the virtual seconds of reading that a stream takes on the papers' disk."""
    clock = VirtualClock()
    join = ssij(simulated(relation, clock), on="id", clock=clock, **options)
    assert sum(batch.num_rows for batch in join.process(stream)) == sum(batch.num_rows for batch in stream)
    join.check()
    return clock.now()


def batches_of(keys: NDArray[np.int64], size: int = 4000) -> list[pa.RecordBatch]:
    return pa.table({"id": keys, "n": np.arange(keys.size)}).to_batches(size)
