"""Kafka: a consumer loop with exactly-once results. The sink stores results and offsets in one transaction.

A killed loop starts where the stored offsets say: what was not committed is read again, and nothing else. Offsets that
Kafka stores for the consumer group are not used. Create the consumer with ``"auto.offset.reset": "error"``: by default
it skips to the end, without an error, if Kafka has deleted messages that were not read yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from semistream.core.errors import SemistreamError

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
    consumer: Consumer, topic: str, sink: Sink, enrich: Callable[[list[bytes]], pa.Table], *,
    partitions: Iterable[int] | None = None, batch: int = 10_000, idle: Callable[[], bool] = lambda: True,
) -> None:  # fmt: skip
    """Consume messages, ``batch`` at a time: ``enrich`` turns their values into results, and ``sink`` stores them.

    ``partitions`` are those of this process, by default all. Two loops for one partition do no harm: the second to
    write raises. ``idle`` is called when no message has come for a second; the loop ends if it returns False.
    """
    found = consumer.list_topics(topic, timeout=30).topics[topic]
    if found.error:
        raise SemistreamError(f"topic {topic!r} cannot be read: {found.error}; create it, or give another name")
    stored = sink.offsets(topic)
    position = {one: stored.get(one) for one in (found.partitions if partitions is None else partitions)}
    for one, at in position.items():
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30)
        if at is not None and not low <= at <= high:
            told = f"partition {one} of {topic!r} has offsets {low} to {high}, and the sink continues at {at}"
            raise SemistreamError(f"{told}: messages are gone; correct the sink's offset to continue without them")
    begins = {one: OFFSET_BEGINNING if at is None else at for one, at in position.items()}
    consumer.assign([TopicPartition(topic, one, at) for one, at in begins.items()])
    while (messages := consumer.consume(batch, timeout=1.0)) or idle():
        if broken := next((message.error() for message in messages if message.error()), None):
            raise KafkaException(broken)
        if messages:
            after: dict[int, Any] = {message.partition(): message.offset() + 1 for message in messages}
            sink.write(enrich([message.value() for message in messages]), topic, position, after)
            position |= after
