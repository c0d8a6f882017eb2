"""Every query of the Grafana dashboard and of the alert rules, asked of a real Prometheus that scrapes our page."""

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

import pytest

pytest.importorskip("pyspark")

from made_batches import batch
from semistream.spark.monitoring.prometheus import PrometheusPage
from servers import free_port

EXAMPLES = Path(__file__).parents[3] / "examples" / "monitoring"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has scraped some micro-batches; its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    place = tmp_path_factory.mktemp("prometheus")
    page, port = PrometheusPage(0), free_port()
    config = (EXAMPLES / "prometheus.yml").read_text().replace("9464", str(page.port)).replace("10s", "200ms")
    (place / "prometheus.yml").write_text(config)
    shutil.copy(EXAMPLES / "alerts.yml", place)
    page.add(batch(0, parked=3))
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [program, f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: bool(asked(address, "semistream_batches_total")), place / "log", process)
        for number in range(1, 6):
            page.add(batch(number, parked=3))
            time.sleep(0.4)
        yield address
    finally:
        process.terminate()
        process.wait(30)
        page.close()


def _wait(ready: Any, log: Path, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 60
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


@pytest.mark.server
def test_every_query_of_the_dashboard_answers(prometheus: str) -> None:
    board = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) >= 15
    for query in queries:
        found = asked(prometheus, re.sub(r"\$(query|join)", ".*", query))
        assert found, query
        assert all(one["value"][1] != "NaN" for one in found), query
    version = asked(prometheus, 'max by (join) (semistream_shard_version{join="products"})')
    assert version[0]["value"][1] == "1"


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
    # five minutes of silence are a stall, and a moment of it is none
    assert asked(prometheus, "time() - semistream_last_batch_time_seconds > 300") == []
    assert asked(prometheus, "time() + 400 - semistream_last_batch_time_seconds > 300")
