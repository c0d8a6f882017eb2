"""One life of a Kafka loop, in a process that a test kills."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.json
from confluent_kafka import Consumer

from semistream import Relation
from semistream.adapters.kafka_loop import run
from semistream.adapters.sqlite_sink import SqliteSink
from semistream.lookups import Lookups, with_rows

SALES = pa.schema({"sale": pa.int64(), "product": pa.int64()})


def enriched(values: list[bytes], lookups: Lookups) -> pa.Table:
    time.sleep(0.005)  # long enough to be killed here
    parse = pyarrow.json.ParseOptions(explicit_schema=SALES)
    return with_rows(
        pyarrow.json.read_json(pa.BufferReader(b"\n".join(values)), parse_options=parse), lookups, "product"
    )


def create(folder: Path) -> None:
    with sqlite3.connect(folder / "facts.db") as connection:
        connection.execute("CREATE TABLE facts (sale INTEGER, product INTEGER, name TEXT)")


def live(folder: Path, servers: str, topic: str, messages: int) -> None:
    """Consume until all messages are stored."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "facts",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    sink = SqliteSink(folder / "facts.db", "facts")
    with Relation.open(folder / "products") as relation, Lookups(relation, memory="500KB") as lookups:
        consumer = Consumer(settings)
        run(
            consumer, topic, sink, lambda values: enriched(values, lookups), batch=20,
            idle=lambda: sum(sink.offsets(topic).values()) < messages,
        )  # fmt: skip
        consumer.close()
