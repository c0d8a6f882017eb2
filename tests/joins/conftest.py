"""What tests of joins share: where relations are put, and one that takes a while to build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.relation.relation import Relation


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the test's own."""
    return tmp_path_factory.mktemp("relations")


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relation]:
    """R of sixty thousand rows of 96 bytes in pages of 2 KiB, four fifths full."""
    rows = 60_000
    master = pa.table({"id": np.arange(rows), **{f"c{i}": np.arange(rows) for i in range(11)}})
    with Relation.build(master, tmp_path_factory.mktemp("skewed") / "r", "id", page_size=2048, fill=0.8) as relation:
        yield relation
