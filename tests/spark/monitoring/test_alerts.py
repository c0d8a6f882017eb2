"""Every alert rule is seen to fire, and to be silent before: promtool goes through hours of made-up series."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ALERTS = Path(__file__).parents[3] / "examples" / "monitoring" / "alerts.yml"
RULES: dict[str, Any] = {rule["alert"]: rule for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}
QUERY = {"query": "sales"}
JOIN = {"query": "sales", "join": "products"}


@dataclass
class Case:
    """Series a minute, all well for an hour and not from then on; when the alert is to be silent, and when to fire."""

    labels: dict[str, str]
    series: dict[str, str]
    silent: tuple[str, ...] = ("59m",)
    fires: str = "100m"


def rising(rate: int, then: int) -> str:
    """A counter that grows by so much a minute, and by so much after an hour."""
    return f"0+{rate}x60 {60 * rate + then}+{then}x60"


CASES = {
    # no rows come for half an hour, of which Spark tells; then it tells nothing
    "SemistreamQueryStalled": Case(QUERY, {"semistream_alive_time_seconds": "0+60x60 3600x60"}, ("59m", "65m"), "67m"),
    "SemistreamDown": Case({"job": "semistream", "instance": "here:9464"}, {"up": "1x60 0x60"}, ("60m",), "64m"),
    "SemistreamFallsBehind": Case(
        QUERY, {"semistream_arrival_rate": "1000x120", "semistream_service_rate": "5000x60 900x60"}, ("59m", "65m")
    ),
    # little is answered from memory as long as it fills, and that is no alarm
    "SemistreamBudgetTooSmall": Case(
        JOIN,
        {
            "semistream_join_cache_hits_total": rising(100, 100),
            "semistream_join_rows_done_total": rising(1000, 1000),
            "semistream_join_bytes_held": "500x60 990x60",
            "semistream_join_memory": "1000x120",
        },
        ("59m", "65m"),
    ),
    "SemistreamCacheThrashes": Case(
        JOIN,
        {
            "semistream_join_pages_read_total": rising(100, 800),
            "semistream_join_rows_done_total": rising(1000, 1000),
        },
        ("59m", "65m"),
    ),
    "SemistreamLocalTierThrashes": Case(
        JOIN,
        {
            "semistream_join_local_pages_total": rising(90, 10),
            "semistream_join_pages_read_total": rising(100, 100),
            "semistream_join_store_requests_total": rising(5, 40),
        },
        ("59m", "65m"),
    ),
    "SemistreamRowsGivenUp": Case(JOIN, {"semistream_join_parked_expired_total": "7x60 9x60"}, ("59m",), "62m"),
}


def test_no_rule_is_left_out() -> None:
    assert CASES.keys() == RULES.keys()
    assert all(rule["annotations"].keys() == {"summary", "remedy"} for rule in RULES.values())


@pytest.mark.server
def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    tests = [_described(alert, case) for alert, case in CASES.items()]
    # a relation on disk has no store: nothing of it is fetched past a local tier
    quiet = {**CASES["SemistreamLocalTierThrashes"].series, "semistream_join_store_requests_total": "0x120"}
    tests.append(_described("SemistreamLocalTierThrashes", Case(JOIN, quiet, ("59m", "100m", "119m"), fires="")))
    file = tmp_path / "alerts-test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([program, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _described(alert: str, case: Case) -> dict[str, Any]:
    rule = RULES[alert]
    told = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
        for name, text in rule["annotations"].items()
    }
    assert not any("{{" in text for text in told.values())
    labels = ",".join(f'{name}="{value}"' for name, value in case.labels.items())
    fired = {"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": told}
    moments = [{"eval_time": at, "alertname": alert, "exp_alerts": []} for at in case.silent]
    if case.fires:
        moments.append({"eval_time": case.fires, "alertname": alert, "exp_alerts": [fired]})
    return {
        "interval": "1m",
        "input_series": [{"series": f"{name}{{{labels}}}", "values": values} for name, values in case.series.items()],
        "alert_rule_test": moments,
    }
