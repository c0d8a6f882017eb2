from __future__ import annotations

import os
import stat
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from semistream.core.errors import MissingExtraError
from semistream_lab.workloads import TpchTable
from semistream_lab.workloads.tpch import TpchError, _generator
from semistream_lab.workloads.workload import tpch_lineitem, tpch_orders


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        _generator()
    except MissingExtraError as error:
        pytest.skip(str(error))
    return tmp_path_factory.mktemp("tpch")


@pytest.fixture
def no_generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory for scripts in place of the environment's, and no other to search."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "bin"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


@pytest.mark.parametrize("make", [tpch_orders, tpch_lineitem])
@pytest.mark.slow
def test_every_stream_tuple_has_its_master_tuple(make, directory: Path) -> None:
    workload = make(directory, scale_factor=0.01, stream_rows=None)
    stream = workload.stream.table()[workload.stream_key].to_numpy()
    master = workload.master.table()[workload.master_key].to_numpy()
    assert np.unique(master).size == master.size == workload.master.row_count
    assert np.isin(stream, master).all()
    assert stream.size > 5 * master.size


@pytest.mark.slow
def test_sizes_follow_the_scale_factor(directory: Path) -> None:
    assert TpchTable("customer", 0.01, directory).row_count == 1_500
    assert TpchTable("customer", 0.02, directory).row_count == 3_000
    assert TpchTable("orders", 0.01, directory).row_count == 15_000


def test_batches_are_plain_arrow(directory: Path) -> None:
    table = TpchTable("part", 0.01, directory, batch_rows=700)
    batches = list(table.batches())
    assert [batch.num_rows for batch in batches] == [700, 700, 600]
    assert all(batch.schema == table.schema for batch in batches)
    assert not any("view" in str(field.type) for field in table.schema)


@pytest.mark.parametrize("rows", [1, 10_000, 10**9])
@pytest.mark.slow
def test_only_the_first_rows(rows: int, directory: Path) -> None:
    everything = TpchTable("lineitem", 0.01, directory).table()
    table = TpchTable("lineitem", 0.01, directory, rows=rows)
    assert table.table().combine_chunks().equals(everything.slice(0, rows).combine_chunks())
    assert table.row_count == min(rows, everything.num_rows)


@pytest.mark.slow
def test_few_rows_are_made_from_a_small_part(directory: Path) -> None:
    small = TpchTable("orders", 1.0, directory, rows=3_000).file()
    whole = TpchTable("orders", 0.01, directory).file()
    assert small.stat().st_size < whole.stat().st_size


@pytest.mark.slow
def test_a_table_is_made_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TpchTable("supplier", 0.01, directory).table()
    monkeypatch.setattr(subprocess, "run", None)
    assert TpchTable("supplier", 0.01, directory).table().equals(first)
    assert not list(directory.glob("unfinished-*"))


def test_a_missing_generator_says_what_to_install(no_generator: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match="pip install"):
        TpchTable("orders", 0.01, tmp_path / "data").row_count  # noqa: B018


@pytest.mark.parametrize("script", ["echo no space left >&2; exit 3", "exit 0"])
def test_a_failing_generator_leaves_nothing(no_generator: Path, tmp_path: Path, script: str) -> None:
    fake = no_generator / "tpchgen-cli"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    table = TpchTable("orders", 0.01, tmp_path / "data")
    with pytest.raises(TpchError, match=r"orders.*0\.01.*(no space left|no error message)"):
        table.table()
    assert os.listdir(tmp_path / "data") == []


@pytest.mark.parametrize("wrong", [{"name": "sales"}, {"scale_factor": 0.0}, {"rows": 0}, {"batch_rows": 0}], ids=str)
def test_bad_tables_are_refused(wrong) -> None:
    arguments = {"name": "orders", "scale_factor": 1.0, "directory": "unused", **wrong}
    with pytest.raises(ValueError, match=r"must be|unknown TPC-H table 'sales'; known tables: customer"):
        TpchTable(**arguments)
    assert not Path("unused").exists()
