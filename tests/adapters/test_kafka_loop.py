"""The Kafka loop, killed again and again, loses and doubles nothing; two loops for one partition do not either."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka", reason="the Kafka loop needs confluent-kafka")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_life
from kafka_broker import Broker
from semistream import Relation
from semistream.adapters.sqlite_sink import SqliteSink
from semistream.errors import CommitConflictError

PRODUCTS = 500


def send(broker: Broker, topic: str, messages: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(topic, num_partitions=3)])[topic].result(60)
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(messages):
        value = json.dumps({"sale": number, "product": number * 7 % (2 * PRODUCTS)})
        producer.produce(topic, value, partition=number % 3)
        if number % 1000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.long)])
def test_killed_loops_lose_and_double_nothing(tmp_path: Path, kafka: Broker, kills: int) -> None:
    messages = 3_000 + 300 * kills
    name = f"sales-{kills}"
    names = [f"name {number}" for number in range(PRODUCTS)]
    Relation.build(pa.table({"id": range(PRODUCTS), "name": names}), tmp_path / "products", key="id").close()
    kafka_life.create(tmp_path)
    send(kafka, name, messages)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["kafka_life"])
    choose, killed_at = random.Random(kills), []
    while True:
        life = processes.Process(target=kafka_life.live, args=(tmp_path, kafka.servers, name, messages))
        life.start()
        assert life.pid is not None
        if len(killed_at) == kills:
            life.join(300)
            assert life.exitcode == 0
            break
        # Killed between two steps of the loop, at a random time after some rows of this life were stored.
        goal, deadline = stored(tmp_path) + choose.randrange(0, 280), time.monotonic() + 120
        while stored(tmp_path) < goal:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(choose.random() * 0.02)
        os.kill(life.pid, signal.SIGKILL)
        life.join(60)
        assert life.exitcode == -signal.SIGKILL
        killed_at.append(stored(tmp_path))
    assert len(set(killed_at)) > kills // 2  # in the middle of the work, not only before it
    with sqlite3.connect(tmp_path / "facts.db") as connection:
        rows = connection.execute("SELECT * FROM facts ORDER BY sale").fetchall()
    products = [number * 7 % (2 * PRODUCTS) for number in range(messages)]
    assert rows == [
        (number, product, f"name {product}" if product < PRODUCTS else None) for number, product in enumerate(products)
    ]


def stored(folder: Path) -> int:
    with sqlite3.connect(folder / "facts.db", timeout=60) as connection:
        (count,) = connection.execute("SELECT count(*) FROM facts").fetchone()
    return int(count)


def test_two_writers_of_one_partition(tmp_path: Path) -> None:
    kafka_life.create(tmp_path)
    one, other = (SqliteSink(tmp_path / "facts.db", "facts") for _ in range(2))
    rows = pa.table({"sale": [1], "product": [2], "name": ["x"]})
    one.write(rows, "sales", {0: None, 1: None}, {0: 5})
    with pytest.raises(CommitConflictError, match="partition 0 of sales is at offset 5, not at None: another loop"):
        other.write(rows, "sales", {0: None}, {0: 7})
    other.write(rows, "sales", {1: None}, {1: 3})
    assert one.offsets("sales") == {0: 5, 1: 3}
    assert stored(tmp_path) == 2
    with pytest.raises(sqlite3.OperationalError):  # results that do not fit: the offsets stay as they are
        one.write(rows.rename_columns(["sale", "product", "title"]), "sales", {0: 5}, {0: 9})
    assert one.offsets("sales") == {0: 5, 1: 3}
