"""Examples that need a Spark of their own: inside declarative pipelines, and over Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc", reason="Spark Connect needs grpcio: pip install 'semistream[connect]'")
pytest.importorskip("yaml", reason="declarative pipelines need pyyaml: pip install 'semistream[connect]'")

from semistream.spark.demo.warehouse_questions import loaded
from semistream.spark.java import use_java

# both start a server of Spark Connect, on one port
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("connect")]

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, folder: Path) -> Path:
    made = shutil.ignore_patterns("out", "relations", "sales", "spark-warehouse", "__pycache__")
    return Path(shutil.copytree(EXAMPLES / name, folder / name, ignore=made))


def run(command: list[str], place: Path) -> str:
    use_java()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    outcome = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)
    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-4000:]
    return outcome.stdout


@pytest.mark.long
def test_inside_a_declarative_pipeline(tmp_path: Path) -> None:
    place = example("declarative", tmp_path)
    spec = importlib.util.spec_from_file_location("masters_of_declarative", place / "masters.py")
    assert spec is not None
    assert spec.loader is not None
    masters = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(masters)
    masters.make(place)
    file = place / "spark-pipeline.yml"
    file.write_text(file.read_text().replace("file:///tmp/semistream-declarative", f"file://{tmp_path}/storage"))
    run([str(Path(sys.executable).parent / "spark-pipelines"), "run"], place)
    facts = ds.dataset(place / "spark-warehouse" / "facts", format="parquet").to_table().to_pylist()
    assert sorted(row["sale_id"] for row in facts) == list(range(2 * masters.SALES))
    for row in facts:
        known = row["product_id"] < masters.PRODUCTS
        assert row["name"] == (f"product {row['product_id']}" if known else None)
    revenue = ds.dataset(place / "spark-warehouse" / "revenue", format="parquet").to_table()
    assert revenue.num_rows == len({row["name"] for row in facts})


@pytest.mark.long
def test_over_spark_connect(tmp_path: Path) -> None:
    place = example("connect", tmp_path)
    said = run([sys.executable, "enrich.py"], place)
    # the files of a micro-batch that was stopped before it was committed lie beside those that count
    facts = ds.dataset([str(file) for file in loaded(place / "out" / "facts")]).to_table().to_pylist()
    assert len(facts) >= 6_000
    assert f"{len(facts)} facts" in said
    assert sorted(row["sale_id"] for row in facts) == list(range(len(facts)))
    assert all(row["name"] == (f"product {row['product_id']}" if row["product_id"] < 5_000 else None) for row in facts)
