"""Turns that are left half-way: what a join does not know any more it does not answer."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import BrokenJoinError
from semistream.joins import algorithms, find
from semistream.relation.devices.device import DeviceError, Frames, Ints
from semistream.relation.relation import Relation

BOUNDED = [name for name in algorithms() if find(name).bounded]
ROWS = 3_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("half_way") / "r"
    Relation.build(pa.table({"id": np.arange(ROWS), "v": np.arange(ROWS) * 7}), place, "id", page_size=512).close()
    return place


def stream() -> list[pa.RecordBatch]:
    keys = np.random.default_rng(3).integers(0, ROWS + 100, 4_000)
    return pa.table({"id": keys, "n": np.arange(keys.size)}).to_batches(max_chunksize=400)


def refused(join: semistream.Join, how: str) -> None:
    for use in (lambda: join.offer(stream()[0]), lambda: list(join.step()), lambda: list(join.drain())):
        with pytest.raises(BrokenJoinError, match=rf"an iteration of .* {how}.*make a new join"):
            use()


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_after_a_disk_failed_a_join_is_refused_and_a_new_one_is_exact(path, algorithm, monkeypatch):
    with Relation.open(path) as relation:
        join = semistream.create(algorithm, relation, on="id", how="left", memory=40_000)
        read, reads = relation.device.read, 0

        def failing(pages: Ints, frames: Frames) -> None:
            nonlocal reads
            reads += 1
            if reads == 4:
                raise DeviceError("the disk does not answer")
            read(pages, frames)

        with monkeypatch.context() as patch:
            patch.setattr(relation.device, "read", failing)
            patch.setattr(relation.device, "ring", lambda *_: contextlib.nullcontext())  # nobody reads otherwise
            with pytest.raises(DeviceError):
                list(join.process(stream() * 20))
        refused(join, "ended with DeviceError: the disk does not answer")
        again = semistream.create(algorithm, relation, on="id", how="left", memory=40_000)
        found = pa.Table.from_batches(again.process(stream()))
    wanted = Counter(
        (at, key * 7 if key < ROWS else None)
        for part in stream()
        for key, at in zip(part["id"].to_pylist(), part["n"].to_pylist(), strict=True)
    )
    assert Counter(zip(found["n"].to_pylist(), found["v"].to_pylist(), strict=True)) == wanted


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_a_join_whose_turn_nobody_took_to_its_end_is_refused(path, algorithm):
    with Relation.open(path) as relation:
        join = semistream.create(algorithm, relation, on="id", memory=40_000)
        results = join.process(stream())
        next(results)
        results.close()
        refused(join, "was not iterated to its end")


def test_a_turn_that_did_not_begin_harms_nothing(path):
    with Relation.open(path) as relation:
        join = semistream.create("inlj", relation, on="id", how="left", memory=40_000)
        join.step().close()  # type: ignore[attr-defined]
        assert sum(part.num_rows for part in join.process(stream())) == sum(part.num_rows for part in stream())
