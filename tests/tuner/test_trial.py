"""Joins tried on a sample: what they serve when they are warm, whatever the first batch took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from semistream.tuner import trial


class Compiling:
    """A join whose first batch takes long."""

    def __init__(self) -> None:
        self.batches = 0

    def process(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.batches += 1
        time.sleep(0.3 if self.batches == 1 else 0.001)
        yield from batches


def test_what_is_compiled_first_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "create", lambda *_, **__: Compiling())
    found: Any = SimpleNamespace(algorithm="any", options={})
    relation: Any = None
    sample = [pa.record_batch({"id": range(1000)})]
    assert trial.rate_on(relation, found, sample, ["id"], 1, seconds=0.1) > 50_000, "1000 in 0.3 s were 3,333"
