"""A database that is ended for want of memory is told from one that fails otherwise."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from semistream_lab.experiments.measure import database_rates
from semistream_lab.experiments.spec import Point, Workload

POINT = Point(
    task="database", workload=Workload(rows=1000, rows_per_key=16, row_bytes=128), algorithm="ssij", memory=100_000,
    settings={"system": "mariadb", "pool": 10_000_000, "tuples": 100},
)  # fmt: skip


def lost(point: Point, directory: Path) -> list[float]:
    raise database_rates.DatabaseError("Lost connection to server during query")


@pytest.mark.parametrize(("ended", "message"), [(1, "needs more memory than the 175 MB"), (0, "Lost connection")])
def test_who_is_out_of_memory_is_told(tmp_path, monkeypatch, ended, message):
    group = tmp_path / "group"
    group.mkdir()
    (group / "events").write_text(f"under_oom 0\noom_kill {ended}\n")
    (group / "cgroup.procs").touch()
    monkeypatch.setattr(database_rates, "_GROUPS", ((str(tmp_path), "limit", "events"),))
    monkeypatch.setattr(database_rates, "_bounded", lambda most: contextlib.nullcontext(str(group)))
    monkeypatch.setattr(database_rates, "_mariadb", lost)
    with pytest.raises(database_rates.DatabaseError, match=message):
        database_rates.join_rate(POINT, tmp_path)
