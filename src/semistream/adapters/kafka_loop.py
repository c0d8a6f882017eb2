"""Kafka: a consumer loop with exactly-once results. The sink stores results and offsets in one transaction.

A killed loop starts where the stored offsets say: what was not committed is read again, and nothing else. Offsets that
Kafka stores for the consumer group are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

__all__ = ["Sink", "run"]


class Sink(Protocol):
    """Where results go."""

    def offsets(self, topic: str) -> Mapping[int, int]:
        """Return the next offset to read of each partition that has one."""
        ...

    def write(self, rows: pa.Table, topic: str, before: Mapping[int, int | None], after: Mapping[int, int]) -> None:
        """Store results and the offsets ``after`` them, in one transaction. Raise if the offsets are not ``before``."""
        ...


def run(
    consumer: Consumer,
    topic: str,
    sink: Sink,
    enrich: Callable[[list[bytes]], pa.Table],
    *,
    partitions: Iterable[int] | None = None,
    batch: int = 10_000,
    idle: Callable[[], bool] = lambda: True,
) -> None:
    """Consume messages, ``batch`` at a time: ``enrich`` turns their values into results, and ``sink`` stores them.

    ``partitions`` are those of this process, by default all. Two loops for one partition do no harm: the second to
    write raises. ``idle`` is called when no message has come for a second; the loop ends if it returns False.
    """
    every = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    stored = sink.offsets(topic)
    position: dict[int, int | None] = {one: stored.get(one) for one in (every if partitions is None else partitions)}
    begins = {one: OFFSET_BEGINNING if at is None else at for one, at in position.items()}
    consumer.assign([TopicPartition(topic, one, at) for one, at in begins.items()])
    while (messages := consumer.consume(batch, timeout=1.0)) or idle():
        if broken := next((message.error() for message in messages if message.error()), None):
            raise KafkaException(broken)
        if messages:
            after: dict[int, Any] = {message.partition(): message.offset() + 1 for message in messages}
            sink.write(enrich([message.value() for message in messages]), topic, position, after)
            position |= after
