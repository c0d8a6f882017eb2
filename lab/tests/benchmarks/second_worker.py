"""Micro-batches on a cluster of one worker, and of two: each a machine of its own, bound to a core of its own.

``PYTHONPATH=tests python lab/tests/benchmarks/second_worker.py DIRECTORY``, with what
``semistream bench spark --dir DIRECTORY --batch 1000000`` has left there, which must not lie under /tmp: workers have
one of their own. Driver and master run on the same cores, so the ratio is a lower bound of what two machines give.
Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

import psutil

import semistream
import semistream.spark
from cluster import Cluster
from semistream.spark.monitoring.metrics import StreamStatistics, counters_of
from semistream_lab.benchmarks.spark_data import BenchPlan

_MEASURED = 9


def seconds_with(workers: int, plan: BenchPlan, directory: Path, folder: Path, fill: int) -> dict[str, object]:
    """Run the stream of ``bench spark`` through our join; return what the last micro-batches took."""
    cluster = Cluster(folder, machines=workers)
    for number, machine in enumerate(cluster.machines):
        for process in (machine.process, *machine.process.children(recursive=True)):
            for thread in process.threads():
                # one that has ended needs none, and new ones are bound as the one that starts them
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(thread.id).cpu_affinity([number % (psutil.cpu_count() or 1)])
    spark = semistream.spark.session(
        "workers", master=cluster.address, memory="1g",
        settings={
            "spark.executor.memory": "900m", "spark.executor.cores": "1", "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1), "spark.sql.shuffle.partitions": "2",
            # as many pieces for one worker as for two
            "spark.sql.files.minPartitionNum": "2", "spark.default.parallelism": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        },
    )  # fmt: skip
    try:
        files = sorted(plan.stream(directory).glob("part-*.parquet"))[: fill + _MEASURED]
        source = folder / "files"  # in a place that all machines see
        source.mkdir()
        for file in files:
            (source / file.name).hardlink_to(file)
        schema = spark.read.parquet(str(files[0])).schema
        key = plan.workload(1).stream_key
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        relation = plan.relation(directory)
        joined = semistream.spark.join(stream, relation, on=key, how="inner", memory=plan.memory, metrics="join")
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [one for one in query.recentProgress if one["numInputRows"]][-_MEASURED:]
        assert len(progress) == _MEASURED
        totals = StreamStatistics()
        for one in progress:
            totals.add(counters_of(one["observedMetrics"]["join"]) or {})
        taken = [one["durationMs"]["triggerExecution"] / 1e3 for one in progress]
        return {
            "workers": workers, "seconds": taken, "median": statistics.median(taken),
            "rows_per_second": plan.batch_rows / statistics.median(taken), "hit_ratio": totals.totals.hit_ratio,
            "pages": totals.totals.pages_read / totals.batches,
        }  # fmt: skip
    finally:
        spark.stop()
        cluster.close()
        time.sleep(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fill", type=int, default=20, help="micro-batches before those measured")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    plan = BenchPlan(batch_rows=1_000_000)
    place = plan.place(given.directory)
    for workers in given.workers:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            print(json.dumps(seconds_with(workers, plan, given.directory, Path(folder), given.fill)), flush=True)


if __name__ == "__main__":
    main()
