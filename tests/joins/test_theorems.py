"""HYBRIDJOIN's two theorems (§4.3), page by page.

1. For the same stream prefix and the same number of waiting tuples ``h_S``, HYBRIDJOIN reads no page more often
   than MESHJOIN does: a page that was read is wanted again only by a tuple that came ``h_S`` tuples later.
2. HYBRIDJOIN reads no more than a constant number of pages a tuple: never more than INLJ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import semistream
from semistream.joins.interface.join import Join
from semistream.relation.devices.device import Device, DeviceProfile
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import laboratory

pytestmark = pytest.mark.slow

Ints = NDArray[np.int64]
STREAM = pa.schema({"id": pa.int64(), "position": pa.int64()})


class CountingDevice(Device):
    """A device that also knows how often it read each page, and in what order."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner
        self.page_bytes, self.frame_bytes = inner.page_bytes, inner.frame_bytes
        self.page_count, self.counters = inner.page_count, inner.counters
        self.order: list[Ints] = []

    @property
    def reads(self) -> Ints:
        return np.bincount(np.concatenate([np.empty(0, np.int64), *self.order]), minlength=self.page_count)

    def read(self, pages: Ints, frames: NDArray[np.uint8]) -> None:
        self.order.append(pages.copy())
        self.inner.read(pages, frames)

    def measure(self) -> DeviceProfile:
        return self.inner.measure()

    def close(self) -> None:
        self.inner.close()


KEYS = 600


@cache
def built(name: str) -> Relation:
    # keys are even: odd ones are absent
    repeats = {"unique": 1, "three rows": 3, "many pages a key": 30}[name]
    ids = np.repeat(np.arange(KEYS) * 2, repeats)
    return Relation.build(pa.table({"id": ids, "v": ids}), laboratory() / f"theorems {name}", key="id", page_size=512)


def counted(name: str) -> tuple[Relation, CountingDevice]:
    path = built(name).path
    assert path is not None
    relation = Relation.open(path)
    relation.device = device = CountingDevice(relation.device)
    return relation, device


def with_capacity(relation: Relation, waiting: int, **options: Any) -> Join:
    """Make a HYBRIDJOIN whose stream table holds exactly ``waiting`` tuples."""
    low, high = 1, 1 << 24
    while low < high:
        memory = (low + high) // 2
        try:
            capacity = semistream.create(
                "hybridjoin", relation, on="id", memory=memory, schema=STREAM, **options
            ).table.capacity  # type: ignore[attr-defined]
        except ValueError:
            capacity = 0
        low, high = (low, memory) if capacity >= waiting else (memory + 1, high)
    join = semistream.create("hybridjoin", relation, on="id", memory=low, schema=STREAM, **options)
    assert join.table.capacity == waiting  # type: ignore[attr-defined]
    return join


def feed(join: Join, ids: Ints) -> int:
    batch = pa.record_batch([pa.array(ids), pa.array(np.arange(ids.size))], schema=STREAM)
    return sum(result.num_rows for result in join.process([batch]))


def zipf(rng: np.random.Generator, count: int) -> Ints:
    weights = 1 / np.arange(1, KEYS + 1)
    return rng.permutation(KEYS)[rng.choice(KEYS, count, p=weights / weights.sum())] * 2


STREAMS: dict[str, Callable[[np.random.Generator, int], Ints]] = {
    "uniform": lambda rng, count: rng.integers(0, KEYS, count) * 2,
    "zipf": zipf,
    "up and up": lambda rng, count: np.arange(count) % KEYS * 2,
    "down": lambda rng, count: -np.arange(count) % KEYS * 2,
    "two far pages in turn": lambda rng, count: np.arange(count) % 2 * (KEYS - 1) * 2,
    "one key": lambda rng, count: np.full(count, 40),
    "one key, then all others": lambda rng, count: np.where(
        np.arange(count) < count // 2, 40, rng.integers(0, KEYS, count) * 2
    ),
    "a hot page that moves": lambda rng, count: (np.arange(count) // 97 * 31 + rng.integers(0, 5, count)) % KEYS * 2,
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("mesh_pages", [1, 4])
@pytest.mark.parametrize("partition_pages", [1, 2])
def test_no_page_is_read_more_often_than_by_meshjoin(stream: str, mesh_pages: int, partition_pages: int) -> None:
    relation, mesh_device = counted("unique")
    mesh = semistream.create(
        "meshjoin", relation, on="id", how="inner", memory=24_000, schema=STREAM, partition_pages=mesh_pages
    )
    waiting = mesh.view().tuples_a_turn * mesh.view().turns  # type: ignore[attr-defined]
    count = 4 * waiting + 13
    ids = STREAMS[stream](np.random.default_rng(7), count)
    relation, device = counted("unique")
    hybrid = with_capacity(relation, waiting, partition_pages=partition_pages, in_flight=1)
    assert feed(mesh, ids) == feed(hybrid, ids) == count
    assert (device.reads <= mesh_device.reads).all(), f"more often: {np.flatnonzero(device.reads > mesh_device.reads)}"
    assert device.reads.max() <= math.ceil(count / waiting)
    assert device.reads.sum() <= mesh_device.reads.sum()


@settings(max_examples=60)
@given(
    ids=st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=400),
    runs=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    waiting=st.sampled_from([16, 17, 40, 100]),
    partition_pages=st.sampled_from([1, 3]),
)
def test_a_page_is_read_again_only_for_a_tuple_that_came_later(
    ids: list[int], runs: list[int], waiting: int, partition_pages: int
) -> None:
    """The bound of theorem 1 itself: at most one read of a page for each ``h_S`` tuples of the stream."""
    keys = np.repeat(np.array(ids) * 2, np.resize(runs, len(ids)))
    relation, device = counted("unique")
    hybrid = with_capacity(relation, waiting, partition_pages=partition_pages, in_flight=1)
    assert feed(hybrid, keys) == keys.size
    assert device.reads.max() <= math.ceil(keys.size / waiting)


@pytest.mark.parametrize("name", ["unique", "three rows", "many pages a key"])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("in_flight", [1, 256])
def test_no_more_pages_than_inlj(name: str, stream: str, in_flight: int) -> None:
    rng = np.random.default_rng(8)
    ids = STREAMS[stream](rng, 700)
    ids[rng.random(ids.size) < 0.1] += 1  # absent keys cost a page too
    pages = {}
    for algorithm, options in (("inlj", {}), ("hybridjoin", {"partition_pages": 1, "in_flight": in_flight})):
        relation, device = counted(name)
        join = semistream.create(algorithm, relation, on="id", memory=30_000, schema=STREAM, **options)
        feed(join, ids)
        pages[algorithm] = int(device.reads.sum())
    assert pages["hybridjoin"] <= pages["inlj"]
    # INLJ's constant: every page of the key, and no other
    most = int(built(name).locate(np.arange(-1, 2 * KEYS)).counts.max())
    assert pages["inlj"] <= ids.size * most
    if name == "unique":
        assert pages["inlj"] == np.count_nonzero((ids >= 0) & (ids <= 2 * (KEYS - 1)))


def test_every_read_serves_a_tuple() -> None:
    """Each turn of the paper's loop reads one page, and at least the oldest tuple leaves with it."""
    ids = zipf(np.random.default_rng(9), 900)
    relation, device = counted("unique")
    join = with_capacity(relation, 100, partition_pages=1, in_flight=1)
    batch = pa.record_batch([pa.array(ids), pa.array(np.arange(ids.size))], schema=STREAM)
    at, turns = 0, 0
    while at < batch.num_rows or join.pending:
        at += join.offer(batch.slice(at))
        done, read = join.stats.rows_done, len(device.order)
        for _ in join.step():
            pass
        turns += 1
        assert join.stats.rows_done > done
        assert len(device.order) == read + 1
    assert device.reads.sum() == turns


@pytest.mark.parametrize("stream", ["uniform", "zipf", "up and up"])
def test_the_adaptive_partition_stays_within_a_constant(stream: str) -> None:
    """By default HYBRIDJOIN may read neighbours too, which cost no seek: then the constant is the widest partition."""
    ids = STREAMS[stream](np.random.default_rng(10), 700)
    relation, device = counted("unique")
    join = semistream.create("hybridjoin", relation, on="id", how="inner", memory=30_000, schema=STREAM)
    feed(join, ids)
    assert device.reads.sum() <= ids.size * join.view().widest  # type: ignore[attr-defined]
