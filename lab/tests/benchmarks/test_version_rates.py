"""``bench spark-versions``: sessions take turns with the same files, and different rows are found."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from semistream.cli import app
from semistream_lab.benchmarks import fed_query, version_rates
from semistream_lab.benchmarks.join_rates import BenchError
from semistream_lab.benchmarks.spark_data import BenchPlan, write_files
from semistream_lab.benchmarks.version_rates import RatedVersion, VersionProcess, bench_versions

PLAN = BenchPlan(rows=20_000, batch_rows=2_000, memory="600KB", batches=3, warm_up=1, fill_rows=1)


@pytest.mark.long
@pytest.mark.spark
def test_versions_take_turns_and_their_rows_are_compared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with one session for all of them."""
    monkeypatch.setattr(fed_query, "_RARELY", "50ms")
    fed: list[tuple[str, list[int]]] = []

    class Noted(RatedVersion):
        def __init__(self, python: Path, *options: Any) -> None:
            super().__init__(spark, *options)
            self.version = python.name if python != Path(sys.executable) else self.version

        def feed(self, numbers: list[int]) -> list[dict[str, Any]]:
            fed.append((self.version, numbers))
            return super().feed(numbers)

        def _joined(self, stream: DataFrame) -> DataFrame:
            joined = super()._joined(stream)
            return joined.withColumn("sale_id", joined.sale_id + int(self.version == "wrong"))

    found = bench_versions(PLAN, [Path("wrong")], tmp_path, open_version=Noted)
    own = spark.version
    names = [own, "wrong"]
    assert fed[:2] == [(name, [0, 1]) for name in names]
    assert [name for name, _ in fed[2:]] == [own, "wrong", "wrong", own, own, "wrong"]
    assert [numbers for name, numbers in fed[2:] if name == own] == [[2], [3], [4]]
    assert found["newest"] == own
    assert found["differing"] == ["wrong"]
    assert list(found["versions"]) == list(found["over"]) == names
    for name, one in found["versions"].items():
        assert one["rows"] == 6_000
        assert len(one["seconds"]) == 3
        assert found["over"][name] == pytest.approx(one["rows_per_second"] / found["versions"][own]["rows_per_second"])
    monkeypatch.setattr(version_rates, "bench_versions", lambda *_: found)
    outcome = CliRunner().invoke(app, ["bench", "spark-versions", "wrong", "--output", str(tmp_path / "results")])
    assert outcome.exit_code == 1
    assert f"Rows differ from those of {own}: wrong" in outcome.output
    (file,) = (tmp_path / "results").glob("spark-versions-*.json")
    assert json.loads(file.read_text())["differing"] == ["wrong"]


def test_a_version_is_measured_once(tmp_path: Path) -> None:
    class Opened(RatedVersion):
        def __init__(self, *_: Any) -> None:
            self.version = "4.0.5"

        def close(self) -> None:
            pass

    with pytest.raises(BenchError, match=r"other has PySpark 4\.0\.5, which is measured already; give each one once"):
        bench_versions(PLAN, [Path("other")], tmp_path, open_version=Opened)


@pytest.mark.spark
def test_a_process_answers_orders(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def running(plan: BenchPlan) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(version_rates, "bench_session", running)
    write_files(PLAN, tmp_path)
    work = PLAN.place(tmp_path) / "work"
    work.mkdir()
    first = {"plan": version_rates.asdict(PLAN), "directory": str(tmp_path), "work": str(work)}
    orders = "".join(json.dumps(order) + "\n" for order in (first, {"feed": [0, 1]}, {"rows": True}))
    answers = io.StringIO()
    version_rates._serve(io.StringIO(orders), answers)
    opened, fed, rows = map(json.loads, answers.getvalue().splitlines())
    assert opened == {"version": spark.version}
    assert [one["durationMs"]["triggerExecution"] > 0 for one in fed] == [True, True]
    assert rows["rows"] == 6_000


def test_a_process_that_ends_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdin.readline()\n"
        "print('{\"version\": \"4.0\"}', flush=True)\nsys.stdin.readline()\nsys.exit('no memory is left')\n"
    )
    program.chmod(0o755)
    with closing(VersionProcess(program, PLAN, tmp_path, tmp_path)) as process:
        assert process.version == "4.0"
        with pytest.raises(BenchError, match="ended with 1: no memory is left"):
            process.feed([0])
