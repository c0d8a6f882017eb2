"""A real HDFS of one name node and one data node, from what is published on Maven Central."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_broker import Unavailable, fetched
from servers import free_port

__all__ = ["hdfs"]

_HADOOP = "3.4.1"
_SERVER = [f"org.apache.hadoop:hadoop-client-{part}:{_HADOOP}" for part in ("minicluster", "runtime", "api")]
_WITH = [
    "junit:junit:4.13.2", "org.hamcrest:hamcrest-core:1.3", "org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-nop:1.7.36",
    "commons-logging:commons-logging:1.2", "org.mockito:mockito-core:2.28.2",
]  # fmt: skip


@pytest.fixture(scope="session")
def hdfs() -> Iterator[str]:
    """The address of a file system."""
    pytest.importorskip("hdfs_native")
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("HDFS comes from Maven Central, and there is no mvn or java here")
    try:
        jars = fetched(_SERVER + _WITH, transitive=False)
    except Unavailable as error:
        pytest.skip(f"HDFS cannot be had from Maven Central: {error}")
    place = Path(tempfile.mkdtemp(prefix="semistream-hdfs-"))
    port = free_port()
    command = ["java", "-Xmx256m", f"-Dtest.build.data={place}", f"-Dhadoop.log.dir={place}", "-cp", f"{jars}/*"]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-nnport", str(port), "-datanodes", "1"]
    command += ["-D", "dfs.permissions.enabled=true", "-writeDetails", str(place / "ready")]
    process = None
    try:
        with open(place / "log", "wb") as log:
            process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while not (place / "ready").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"HDFS does not start here: {(place / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.1)
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(place, ignore_errors=True)
