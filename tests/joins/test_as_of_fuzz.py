"""Random histories, streams and memories: joins as of a time agree with DuckDB while R changes.

``SEMISTREAM_SOAK_TUPLES`` sets how many tuples to join; ``python -m pytest tests/joins/test_as_of_fuzz.py`` joins few.
``make soak`` joins many, in child processes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from joins.as_of_random import one_case

TUPLES = int(os.environ.get("SEMISTREAM_SOAK_TUPLES", "0"))


@pytest.mark.parametrize("seed", range(8))
def test_random_joins_agree_with_duckdb(seed: int, tmp_path: Path) -> None:
    assert one_case(seed, tmp_path / "r", 3000) == 3000


@pytest.mark.skipif(TUPLES == 0, reason="SEMISTREAM_SOAK_TUPLES says how many tuples to join")
def test_many_random_joins_agree_with_duckdb(tmp_path: Path) -> None:
    done, seed = 0, int(os.environ.get("SEMISTREAM_SOAK_SEED", "1000"))
    while done < TUPLES:
        done += one_case(seed, tmp_path / "r", 60_000)
        shutil.rmtree(tmp_path / "r")
        seed += 1
        print(f"{done:,} tuples, next seed {seed}", flush=True)
