"""What all tests share: one Spark session for all that need one, and Hypothesis profiles."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from unittest import mock
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["servers", "kafka_broker", "s3_server", "s3proxy", "hdfs_cluster", "browser"]

# An adapter's module can be collected only where its package is installed.
collect_ignore = [] if find_spec("quixstreams") else ["src/semistream/adapters/quix_streams.py"]

SERVERS = {"postgresql", "mariadb", "kafka", "s3proxy", "hdfs", "chromium"}
"""Fixtures that start a server; tests of one that need nothing else run in one process."""

# Numba compiles inside the first example, so a deadline would only measure the compiler.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Not what was measured on this machine and kept for its user: results must not depend on it.
os.environ["SEMISTREAM_DATA"] = os.path.join(tempfile.gettempdir(), f"semistream-tests-{os.getpid()}")

# Tests run everything a few times: an optimising compiler takes twice the time of all JVMs, and wins nothing back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

SPARK_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", help="K/N: run the K-th of N shares of the tests, which are divided by their names")
    parser.addoption("--before", type=float, help="skip tests that would start after this time, in seconds since 1970")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that use a server, and send those of one session, or of one server, to the same test process.

    Of a test that is marked ``sampled(n)``, every case but each n-th is ``long``; without n, every case but the first.
    """
    cases: Counter[tuple[object, str]] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            test = (item.parent, item.name.partition("[")[0])
            (every,) = sampled.args or (len(items),)
            if cases[test] % every:
                item.add_marker(pytest.mark.long)
            cases[test] += 1
        # a test for several servers asks for the one its parameter names
        asked = getattr(getattr(item, "callspec", None), "params", {}).values()
        named = {*getattr(item, "fixturenames", ()), *(one for one in asked if isinstance(one, str))}
        servers = sorted(SERVERS & named)
        if servers:
            item.add_marker(pytest.mark.server)
        if item.get_closest_marker("xdist_group") is None and (servers or "spark" in named):
            item.add_marker(pytest.mark.xdist_group("spark" if "spark" in named else servers[0]))
    if share := config.getoption("--share"):
        number, shares = map(int, share.split("/"))
        if not 1 <= number <= shares:
            raise pytest.UsageError(f"--share {share}: the first number must be from 1 to the second")
        in_share = [crc32(item.nodeid.encode()) % shares == number - 1 for item in items]
        config.hook.pytest_deselected(items=[item for item, chosen in zip(items, in_share, strict=True) if not chosen])
        items[:] = [item for item, chosen in zip(items, in_share, strict=True) if chosen]


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    before = item.config.getoption("--before")
    if before is not None and time.time() > before:
        pytest.skip("left out: this machine is too slow for all tests in the time that was given (--before)")


@pytest.fixture(scope="session", autouse=True)
def plain_builds() -> Iterator[None]:
    """Relations that tests build are plain, whatever their size: many tests compute pages from the rows.

    Tests of packed rows use `packed_builds`, or `builds_as_released`.
    """
    from semistream.relation.pages import encoding_choice

    with mock.patch.object(encoding_choice, "PACKED_FROM", 1 << 40):
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark session, started by the first test that asks for it."""
    import semistream.spark
    from kafka_broker import Unavailable, connector_jars

    chosen = dict(SPARK_SETTINGS)
    with suppress(Unavailable):  # the tests that need it are skipped, and say why
        chosen["spark.driver.extraClassPath"] = ":".join(map(str, connector_jars()))
    # Two cores; a task may fail twice before its job does, as on a cluster.
    session = semistream.spark.session("tests", master="local[2,3]", settings=chosen)
    yield session
    session.stop()
