"""Every query of the Grafana dashboard, and what alert rules ask for, of a real Prometheus that scrapes a query."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from feeding import patiently
from made_batches import batch
from semistream.spark.monitoring.files_left import FilesLeft
from semistream.spark.monitoring.listening import StatisticsListener
from semistream.spark.monitoring.prometheus import PrometheusPage
from servers import free_port

EXAMPLES = Path(__file__).parents[3] / "examples" / "monitoring"


@pytest.fixture(scope="module")
def prometheus(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has scraped a query as it ran, and a micro-batch of one whose relation is in a store."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    place = tmp_path_factory.mktemp("prometheus")
    page, port = PrometheusPage(0), free_port()
    config = (EXAMPLES / "prometheus.yml").read_text().replace("9464", str(page.port)).replace("10s", "1s")
    (place / "prometheus.yml").write_text(config)
    shutil.copy(EXAMPLES / "alerts.yml", place)
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [program, f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    waiting = FilesLeft(str(place / "sales"), place / "c")
    listener = StatisticsListener([page], letters=["products"], files_left={"facts": waiting})
    spark.streams.addListener(listener)
    try:
        _wait(lambda: bool(asked(address, "up == 1")), place / "log", process)
        page.add(batch(0, stored=True))
        _run_query(spark, place)
        page.add(batch(1, stored=True))
        for last in ('{query="facts"} == 3', '{query="sales"} == 1'):
            _wait(lambda last=last: asked(address, f"semistream_last_batch{last}"), place / "log", process)
        yield address
    finally:
        spark.streams.removeListener(listener)
        process.terminate()
        process.wait(30)
        page.close()


def _run_query(spark: SparkSession, place: Path) -> None:
    """Run four micro-batches, in each of which some rows have no partner and are parked, until they are given up."""
    known = pa.table({"id": np.arange(5000), "name": [f"product {key}" for key in range(5000)]})
    semistream.Relation.build(known, place / "products", "id", shards=2).close()
    (place / "sales").mkdir()
    for number in range(4):
        keys = np.random.default_rng(number).integers(0, 6000, 1000)
        pq.write_table(pa.table({"id": keys}), place / "sales" / f"{number}.parquet")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(place / "sales"))
    joined = semistream.join(
        stream, place / "products", on="id", on_missing="park", park_for="1 second", after_park="dead_letter",
        park_idle=False, memory="2MB", algorithm="hybridjoin", metrics="products",
    )  # fmt: skip
    writer = joined.writeStream.format("noop").queryName("facts").option("checkpointLocation", str(place / "c"))

    def all_of_it() -> None:
        query = writer.trigger(processingTime="1 second").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    patiently(all_of_it)


def _wait(ready: Any, log: Path, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 120
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < limit, log.read_text()[-2000:]
        time.sleep(0.2)


def asked(address: str, query: str) -> list[Any]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.server
def test_every_query_of_the_dashboard_answers(prometheus: str) -> None:
    board = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) >= 15
    for query in queries:
        which = "sales" if "local_pages" in query else "facts"
        found = asked(prometheus, query.replace("$query", which).replace("$join", ".*"))
        assert found, query
        assert all(one["value"][1] != "NaN" for one in found), query
        assert {one["metric"].get("query", which) for one in found} == {which}
    version = asked(prometheus, 'max by (join) (semistream_shard_version{query="facts"})')
    assert [(one["metric"], one["value"][1]) for one in version] == [({"join": "products"}, "1")]
    assert float(asked(prometheus, 'semistream_join_rows_in_total{query="facts"}')[0]["value"][1]) == 4000
    assert float(asked(prometheus, 'semistream_join_parked_expired_total{query="facts"}')[0]["value"][1]) > 0


@pytest.mark.spark
@pytest.mark.server
def test_alert_rules_are_loaded_and_name_series_that_exist(prometheus: str) -> None:
    with urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=10) as answer:
        rules = json.load(answer)["data"]["groups"][0]["rules"]
    assert {rule["name"] for rule in rules} >= {
        "SemistreamQueryStalled", "SemistreamBudgetTooSmall", "SemistreamCacheThrashes",
    }  # fmt: skip
    for rule in rules:
        assert rule["health"] in ("ok", "unknown"), rule
        for series in set(re.findall(r"semistream_\w+", rule["query"])):
            assert asked(prometheus, series), f"{rule['name']} asks for {series}, which there is not"
    # rows are given up here, which Prometheus may have looked at by now, or not yet
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} <= {"SemistreamRowsGivenUp"}
