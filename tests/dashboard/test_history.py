"""What the live page knows: kept over restarts, in a file that stays small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("starlette")

from made_batches import batch
from semistream.dashboard.history import History, point_of
from semistream.spark.monitoring.prometheus import PrometheusPage


def test_history_outlives_the_query_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "checkpoint-history.jsonl"
    first = History(path)
    for number in range(3):
        first.add(batch(number))
    with open(path, "a") as file:
        file.write('{"query": "sal')
    again = History(path)
    seen: list[int] = []
    again.watch(lambda point: seen.append(point["batch"]))
    again.add(batch(3, run="b"))
    assert [(point["batch"], point["run"]) for point in again.points()] == [(0, "a"), (1, "a"), (2, "a"), (3, "b")]
    assert seen == [3]


def test_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, kept=5)
    for number in range(43):
        history.add(batch(number))
        assert len(path.read_text().splitlines()) <= 10
    assert [point["batch"] for point in History(path, kept=5).points()] == [38, 39, 40, 41, 42]
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]


def test_a_micro_batch_without_rows_counts_only_if_rows_are_parked() -> None:
    history = History(None)
    history.add(batch(0, rows=0))
    history.add(batch(1, rows=0, parked=7))
    assert [(point["batch"], point["parked"]) for point in history.points()] == [(1, 7)]


def test_a_point_is_json_with_shards_and_the_split_of_memory() -> None:
    point = json.loads(json.dumps(point_of(batch(4, version=3))))
    found = point["joins"]["products"]
    assert (found["rows_in"], found["version"], found["memory"]) == (1000, 3, 4000)
    assert found["split"] == {"stream": 200, "cache": 1400, "reading": 200, "results": 100, "index": 100}
    assert {number: shard["rows_in"] for number, shard in found["shards"].items()} == {"0": 500, "1": 500}


def test_prometheus_has_shards_parts_and_parked_rows() -> None:
    page = PrometheusPage(0)
    try:
        page.add(batch(0, parked=9))
        page.add(batch(1, version=2, parked=4))
        text = page.text()
    finally:
        page.close()
    for line in (
        'semistream_join_memory_part_bytes{join="products",part="cache",query="sales"} 1400.0',
        'semistream_join_parked_rows{join="products",query="sales"} 4.0',
        'semistream_join_parked_expired_total{join="products",query="sales"} 4.0',
        'semistream_shard_version{join="products",query="sales",shard="1"} 2.0',
        'semistream_dead_rows_total{query="sales"} 6.0',
        'semistream_backlog{query="sales",unit="rows"} 70.0',
        'semistream_join_pages_useful_total{join="products",query="sales"} 124.0',
    ):
        assert line in text
