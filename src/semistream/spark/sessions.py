"""A local Spark session with settings that suit a laptop, a test and the demo."""

from __future__ import annotations

import os
import sys

from pyspark import SparkContext
from pyspark.sql import SparkSession

from semistream.spark.java import use_java
from semistream.spark.sales_source import register_sources

__all__ = ["ROCKSDB", "session"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""Spark's state store in RocksDB: the one that ``transformWithState`` works with."""

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def session(
    name: str = "semistream",
    *,
    master: str = "local[*]",
    memory: str = "2g",
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session on this machine, starting one if there is none.

    For a cluster, make the session as you always do: nothing else here depends on this function.

    Parameters
    ----------
    name
        The application's name.
    master
        ``local[n]`` runs ``n`` tasks at a time; ``local[*]`` as many as there are cores.
    memory
        Heap of the JVM. Joins run in Python workers, outside of it.
    settings
        More Spark settings; they win over the ones made here.

    Notes
    -----
    Listens on the loopback address only, without the web page and progress lines; shuffles into two partitions a core
    instead of 200; keeps state in RocksDB, which parked rows need; moves data between JVM and Python as Arrow. Java is
    found by `semistream.spark.java.use_java`. ``format("semistream-sales")`` is known. An active session is returned
    as it is, with its SQL settings updated.

    Examples
    --------
    >>> spark = session(settings={"spark.sql.session.timeZone": "UTC"})      # doctest: +SKIP
    >>> spark.range(3).count()                                               # doctest: +SKIP
    3
    """
    # Workers must run this Python, not whichever python3 comes first on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:  # the JVM is not running yet
        use_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # The other manager starts thirty processes a micro-batch (readlink, chmod) where Hadoop has no native library.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    } | (settings or {})
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register_sources(spark)
    return spark
