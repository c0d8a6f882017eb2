"""A driver on a cluster, for a test: two streams are joined with one relation in a store, into Delta tables there."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import semistream
import semistream.spark
from semistream.core.errors import NotARelationError
from semistream.spark.monitoring.metrics import counters_of
from semistream.spark.sinks import DeltaSink, write_stream

__all__ = ["BATCH", "KEYS", "LOCAL", "MEMORY", "ROWS", "STREAMS", "R", "facts", "noise", "storage"]

R = "s3://bucket/cluster/products"
ROWS, KEYS, BATCH = 20_000, 24_000, 6_000
MEMORY, LOCAL = 1 << 20, 1 << 20
STREAMS = {"left": 7, "inner": 11}
"""Queries, by how they join; a row's key is its number times this."""
_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def facts(how: str) -> str:
    """Return where the results of a query are."""
    return f"s3://bucket/cluster/facts-{how}"


def noise(id: int) -> str:
    """Return what comes before the number in a name of the first version."""
    return f"{hashlib.sha512(b'%d' % id).hexdigest()}{hashlib.sha256(b'%d' % -id).hexdigest()} "


def storage() -> dict[str, str]:
    """Return what Delta's package wants to know of the store."""
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    return {name: os.environ[name] for name in names} | {"AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}


def main(master: str, folder: Path) -> None:
    """Tell counters of each micro-batch, as a line of JSON, until somebody ends it."""
    (folder / "events").mkdir(exist_ok=True)
    spark = semistream.spark.session(
        "cluster", master=master, memory="512m",
        settings={
            "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.task.maxFailures": "8",
            "spark.executor.extraJavaOptions": _FAST, "spark.driver.extraJavaOptions": _FAST,
            "spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "2",
            "spark.speculation.minTaskRuntime": "3s", "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(), "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        },
    )  # fmt: skip
    try:
        semistream.Relation.open(R).close()
    except NotARelationError:
        # hexadecimal digits, of which packing leaves half: R does not fit into memory, and pages are read
        name = "concat('0 ', sha2(string(id), 512), sha2(string(-id), 256), ' ', id) AS name"
        products = spark.range(0, ROWS, 1, 2).selectExpr("id", name)
        semistream.spark.build(products, R, "id", shards=2, page_size=1024).close()
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH).option("numPartitions", 2)
    queries = {}
    for how, factor in STREAMS.items():
        stream = source.load().selectExpr("value", f"value * {factor} % {KEYS} AS key")
        joined = semistream.spark.join(stream, R, on="key", how=how, memory=MEMORY, local=LOCAL, metrics="join")
        writer = write_stream(joined, DeltaSink(facts(how), storage_options=storage()))
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{how}"))
        queries[how] = writer.trigger(processingTime="1 second").start()
    told = dict.fromkeys(queries, -1)
    while all(query.isActive for query in queries.values()):
        time.sleep(0.1)
        for how, query in queries.items():
            for progress in query.recentProgress:
                if progress["batchId"] > told[how] and progress["numInputRows"]:
                    told[how] = progress["batchId"]
                    counters = counters_of(progress["observedMetrics"].get("join"))
                    print(json.dumps([how, told[how], counters]), flush=True)
    sys.exit(f"a query has ended: {[query.exception() for query in queries.values()]}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
