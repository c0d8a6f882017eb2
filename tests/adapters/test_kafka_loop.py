"""The Kafka loop, killed again and again, loses and doubles nothing; two loops for one partition do not either."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka", reason="the Kafka loop needs confluent-kafka")

from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_life
from kafka_broker import Broker
from semistream import Relation
from semistream.adapters.kafka_loop import run
from semistream.adapters.sqlite_sink import SqliteSink
from semistream.errors import CommitConflictError, SemistreamError

PRODUCTS = 500


def send(producer: Producer, topic: str, messages: int) -> None:
    for number in range(messages):
        value = json.dumps({"sale": number, "product": number * 7 % (2 * PRODUCTS)})
        producer.produce(topic, value, partition=number % 3)
        if number % 1000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0


@pytest.fixture
def in_client() -> Iterator[Producer]:
    """A producer with a broker in the client library, which other processes reach: no Java, no replication."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    yield producer
    producer.flush(10)


@pytest.mark.long
@pytest.mark.slow
def test_killed_loops_lose_and_double_nothing(tmp_path: Path, in_client: Producer) -> None:
    send(in_client, "sales", 4_000)
    (broker,) = in_client.list_topics(timeout=30).brokers.values()
    kill_loops(tmp_path, f"{broker.host}:{broker.port}", "sales", kills=8, messages=4_000)


@pytest.mark.slow
@pytest.mark.long
def test_a_hundred_kills_with_a_real_broker(tmp_path: Path, kafka: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.create_topics([NewTopic("sales-killed", num_partitions=3)])["sales-killed"].result(60)
    send(Producer({"bootstrap.servers": kafka.servers}), "sales-killed", 40_000)
    kill_loops(tmp_path, kafka.servers, "sales-killed", kills=100, messages=40_000)


def kill_loops(folder: Path, servers: str, topic: str, *, kills: int, messages: int) -> None:
    names = [f"name {number}" for number in range(PRODUCTS)]
    Relation.build(pa.table({"id": range(PRODUCTS), "name": names}), folder / "products", key="id").close()
    kafka_life.create(folder)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["kafka_life"])
    choose, killed_at = random.Random(kills), []
    for number in range(kills + 1):
        life = processes.Process(target=kafka_life.live, args=(folder, servers, topic, messages))
        life.start()
        assert life.pid is not None
        if number == kills:
            life.join(300)
            assert life.exitcode == 0
            break
        # Killed at a random time, after some rows of this life were stored.
        goal = stored(folder) + choose.randrange(0, 150)
        while stored(folder) < goal:
            assert life.is_alive()
            time.sleep(0.005)
        time.sleep(choose.random() * 0.02)
        os.kill(life.pid, signal.SIGKILL)
        life.join(60)
        assert life.exitcode == -signal.SIGKILL
        killed_at.append(stored(folder))
    assert len(set(killed_at)) > kills // 2  # in the middle of the work, not only before it
    with closing(sqlite3.connect(folder / "facts.db")) as connection:
        rows = connection.execute("SELECT * FROM facts ORDER BY sale").fetchall()
    products = [number * 7 % (2 * PRODUCTS) for number in range(messages)]
    assert rows == [
        (number, product, f"name {product}" if product < PRODUCTS else None) for number, product in enumerate(products)
    ]


def stored(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "facts.db", timeout=60)) as connection:
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


class OneMessage:
    """A consumer of a topic whose only partition has the message of offset 7, and then ends."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self._topic = SimpleNamespace(error=error, partitions={} if error else {0: None})
        self._messages = [
            SimpleNamespace(error=lambda: None, partition=lambda: 0, offset=lambda: 7, value=lambda: b"x")
        ]

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: self._topic})

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        return 7, 8

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert [one.topic for one in partitions] == ["sales"]

    def consume(self, count: int, timeout: float) -> list[SimpleNamespace]:
        given, self._messages = self._messages, []
        return given


def consume_one(folder: Path, consumer: OneMessage) -> None:
    def one(values: list[bytes]) -> pa.Table:
        return pa.table({"sale": [1], "product": [2], "name": ["x"]}).slice(0, len(values))

    run(consumer, "sales", SqliteSink(folder / "facts.db", "facts"), one, idle=lambda: False)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [3, 6, 9])
def test_a_loop_whose_messages_are_gone_does_not_skip_them(tmp_path: Path, at: int) -> None:
    kafka_life.create(tmp_path)
    SqliteSink(tmp_path / "facts.db", "facts").write(pa.table({"sale": [0]}), "sales", {0: None}, {0: at})
    with pytest.raises(
        SemistreamError, match=rf"partition 0 of 'sales' has offsets 7 to 8, .* continues at {at}: mess"
    ):
        consume_one(tmp_path, OneMessage())
    assert stored(tmp_path) == 1


@pytest.mark.parametrize("at", [None, 7])
def test_a_loop_begins_at_the_first_message_or_where_it_was(tmp_path: Path, at: int | None) -> None:
    kafka_life.create(tmp_path)
    sink = SqliteSink(tmp_path / "facts.db", "facts")
    if at is not None:
        sink.write(pa.table({"sale": [0]}), "sales", {0: None}, {0: at})
    consume_one(tmp_path, OneMessage())
    assert sink.offsets("sales") == {0: 8}


def test_a_topic_that_does_not_exist_is_named(tmp_path: Path) -> None:
    kafka_life.create(tmp_path)
    with pytest.raises(SemistreamError, match=r"topic 'sales' cannot be read: .*; create it, or give another name"):
        consume_one(tmp_path, OneMessage(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
