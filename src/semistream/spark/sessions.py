"""A local Spark session with settings for a laptop, for tests and for the demo."""

from __future__ import annotations

import os
import sys

from pyspark import SparkContext
from pyspark.sql import SparkSession

from semistream.spark.features import ROCKSDB, checkpoint_files
from semistream.spark.java import use_java
from semistream.spark.sales_source import register_sources

__all__ = ["session"]

_ARROW = "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS"
"""Environment variable of the JVM: if it is true, Arrow does not check the bounds of each value.

Arrow still checks for NULLs. Spark does not check columns that are declared NOT NULL, and would read any value instead.
"""
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


def session(
    name: str = "semistream",
    *,
    master: str = "local[*]",
    memory: str = "2g",
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session on this machine; start one if there is none.

    For a cluster, create the session as usual: nothing else here depends on this function.

    Parameters
    ----------
    name
        The application's name.
    master
        ``local[n]`` runs ``n`` tasks in parallel; ``local[*]`` runs one per core.
    memory
        Heap of the JVM. Joins run in Python workers, outside of it.
    settings
        More Spark settings; they override the settings made here.

    Notes
    -----
    The session listens on the loopback address only, without web page and progress lines. It shuffles into two
    partitions per core instead of 200, keeps state in RocksDB, which parked rows need, and moves data between JVM and
    Python as Arrow. A JVM that it starts reads this data without Arrow's own checks of bounds; set
    ``ARROW_ENABLE_UNSAFE_MEMORY_ACCESS=false`` in the environment to keep them. `semistream.spark.java.use_java` finds
    Java. ``format("semistream-sales")`` is registered. If there is an active session, it is returned with its SQL
    settings updated.

    Examples
    --------
    >>> spark = session(settings={"spark.sql.session.timeZone": "UTC"})      # doctest: +SKIP
    >>> spark.range(3).count()                                               # doctest: +SKIP
    3
    """
    # Workers must run this Python, not the first python3 on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:  # the JVM is not running yet
        use_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault(_ARROW, "true")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    } | (settings or {})
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    # The default manager starts thirty processes per micro-batch (readlink, chmod) if Hadoop has no native library.
    if _CHECKPOINTS not in chosen and (files := checkpoint_files(spark)) is not None:
        spark.conf.set(_CHECKPOINTS, files)
    register_sources(spark)
    return spark
