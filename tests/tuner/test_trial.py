"""Joins tried on a sample: what they serve when they are warm, whatever the first batch took."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from semistream.tuner import trial


class Compiling:
    """A join whose first batch takes long, by a clock of its own."""

    def __init__(self) -> None:
        self.batches = 0
        self.now = 0.0

    def process(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.batches += 1
        self.now += 0.3 if self.batches == 1 else 0.001
        yield from batches


def test_what_is_compiled_first_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    join = Compiling()
    monkeypatch.setattr(trial, "create", lambda *_, **__: join)
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: join.now))
    found: Any = SimpleNamespace(algorithm="any", options={})
    relation: Any = None
    sample = [pa.record_batch({"id": range(1000)})]
    rate = trial.rate_on(relation, found, sample, ["id"], 1, seconds=0.1)
    assert rate == pytest.approx(1e6, rel=0.01), "1000 in 0.3 s were 3,333"
