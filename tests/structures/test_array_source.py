"""Arrays in files: found again by the next who asks, and never changed under one who has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semistream.structures.array_source import MappedArrays


def test_one_of_another_size_is_made_anew_beside_it(tmp_path: Path) -> None:
    before = MappedArrays(tmp_path)("numbers", 4, np.int64)
    before[:] = 7
    after = MappedArrays(tmp_path)("numbers", 5, np.int64)
    assert after.tolist() == [0] * 5
    after[:] = 8
    assert before.tolist() == [7] * 4
    assert MappedArrays(tmp_path, existing=True)("numbers", 5, np.int64).tolist() == [8] * 5


def test_one_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    MappedArrays(tmp_path)("numbers", 4, np.int64)
    there = MappedArrays(tmp_path, existing=True)
    with pytest.raises(FileNotFoundError, match="40 bytes was expected"):
        there("numbers", 5, np.int64)
    with pytest.raises(FileNotFoundError, match="others"):
        there("others", 4, np.int64)
    assert there("none", 0, np.int64).size == 0
