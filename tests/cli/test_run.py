"""What `semistream run` says of a query that has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

pytest.importorskip("pyspark")

import semistream
from semistream.cli import run_notices
from semistream.cli.run import _summary
from semistream.cli.run_notices import first_batch_notices, last_number, waiting
from semistream.spark.monitoring.listening import BatchTotals
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.plan import PipelinePlan
from semistream.spark.pipeline.reading import read_plan


def plan(place: Path, trigger: str) -> PipelinePlan:
    (place / "sales").mkdir(exist_ok=True)
    semistream.Relation.build(pa.table({"id": [1]}), place / "products", key="id", overwrite=True).close()
    text = f"""
checkpoint = "checkpoint"
trigger = "{trigger}"
[source]
format = "parquet"
path = "sales"
schema = "id bigint"
[[join]]
relation = "products"
on = "id"
[sink]
format = "console"
"""
    document = Document(place / "p.toml", text, {})
    found = read_plan(document)
    assert [str(problem) for problem in document.problems] == []
    return found


@pytest.mark.parametrize(
    ("trigger", "committed", "told"),
    [
        ("available now", True, "nothing new: all rows of the source were joined before"),
        ("available now", False, "no rows arrived"),
        ("10 seconds", True, "no rows arrived"),
    ],
)
def test_a_query_without_rows_says_no_more_than_is_known(
    tmp_path: Path, trigger: str, committed: bool, told: str
) -> None:
    found = plan(tmp_path, trigger)
    assert found.checkpoint is not None
    (found.checkpoint / "commits").mkdir(parents=True)
    (found.checkpoint / "commits" / ".0.crc").touch()
    if committed:
        (found.checkpoint / "commits" / "0").touch()
    screen = Console(record=True, width=120)
    screen.print(_summary("sales", BatchTotals(), found, before=last_number(found.checkpoint, "commits") is not None))
    assert told in screen.export_text()


def test_a_restart_says_which_batch_it_replays_or_goes_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_notices, "_kernels_are_kept", lambda: True)
    assert list(first_batch_notices(tmp_path)) == [], "the very first batch"
    for part in ("offsets", "commits"):
        (tmp_path / part).mkdir()
        (tmp_path / part / ".17.crc").touch()
        for number in range(8, 17):
            (tmp_path / part / str(number)).touch()
    assert list(first_batch_notices(tmp_path)) == ["continuing with batch 17 …"]
    (tmp_path / "offsets" / "17").touch()
    assert list(first_batch_notices(tmp_path)) == [
        "replaying batch 17: it was started before the last stop, but not committed …"
    ]
    monkeypatch.setattr(run_notices, "_kernels_are_kept", lambda: False)
    assert (
        list(first_batch_notices(tmp_path))[1] == "Spark's workers are compiling kernels, once for this environment …"
    )


def test_what_takes_long_is_said_where_there_is_no_screen(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log, waiting(Console(file=log), "Checking p.toml, and starting Spark"):
        log.flush()
        assert (tmp_path / "log").read_text() == "Checking p.toml, and starting Spark …\n"


@pytest.mark.long
@pytest.mark.slow
def test_a_signal_that_ends_the_jvm_too_is_a_normal_stop(tmp_path: Path) -> None:
    """`timeout` and systemd send SIGTERM to all processes; then Spark reported an error of its own."""
    semistream.Relation.build(pa.table({"id": range(100), "name": ["n"] * 100}), tmp_path / "products", "id").close()
    (tmp_path / "sales").mkdir()
    for number in range(400):
        pq.write_table(pa.table({"id": range(100)}), tmp_path / "sales" / f"{number}.parquet")
    (tmp_path / "p.toml").write_text("""
checkpoint = "checkpoint"
trigger = "0 seconds"
[source]
format = "parquet"
path = "sales"
schema = "id bigint"
options = { maxFilesPerTrigger = 1 }
[[join]]
relation = "products"
on = "id"
[sink]
format = "parquet"
path = "facts"
""")
    command = [sys.executable, "-c", "from semistream.cli import main; main()", "run", str(tmp_path / "p.toml")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 300
        while not (tmp_path / "checkpoint" / "commits" / "2").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)
        said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert "error" not in said
    assert "rows in" in said
