"""A Kafka broker of one node for tests, and Spark's connector, from what is published on Maven Central."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers import free_port

__all__ = ["Broker", "Unavailable", "connector_jars", "fetched", "kafka"]

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_BROKER = ["org.apache.kafka:kafka_2.13:4.1.0", "org.apache.kafka:kafka-tools:4.1.0"]
# Spark's connector and what it needs, without what Spark has itself. Not every version of Spark is published whole, so
# the next older connector stands in for one that is not there; the test shows that it works.
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_VERSIONS = [("{spark}", "{spark}"), ("4.2.0", "4.0.0")]
_WITH_CONNECTOR = ["org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.13.1"]


@dataclass(frozen=True)
class Broker:
    """A running broker."""

    servers: str
    connector: str
    """Files for ``spark.jars``."""
    jars: Path

    def send(self, topic: str, lines: list[str]) -> None:
        """Send messages to a topic, which is made if it does not exist."""
        command = ["org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", self.servers, "--topic", topic,
                   "--request-timeout-ms", "60000", "--message-send-max-retries", "20"]  # fmt: skip
        done = subprocess.run(
            ["java", "-Xmx128m", "-cp", f"{self.jars}/*", *command], input="\n".join(lines) + "\n",
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"cannot send to {topic}: {done.stderr[-1000:]}")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """A broker that is its own controller (KRaft)."""
    try:
        connector = ",".join(map(str, connector_jars()))
        jars = fetched(_BROKER, transitive=True)
    except Unavailable as error:
        pytest.skip(f"Kafka cannot be had: {error}")
    place = Path(tempfile.mkdtemp(prefix="semistream-kafka-"))
    port, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller", "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}", "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}", "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(place / "data"), "offsets.topic.replication.factor": "1", "num.partitions": "2",
        "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
    }  # fmt: skip
    (place / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = ["java", "-Xmx256m", "-cp", f"{jars}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    process = None
    try:
        subprocess.run(
            # one argument, because one identifier in 64 begins with a hyphen
            [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", place / "server.properties"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        with open(place / "log", "wb") as log:
            process = subprocess.Popen(
                [*java, "kafka.Kafka", str(place / "server.properties")], stdout=log, stderr=subprocess.STDOUT
            )
        _wait(process, port, place)
        yield Broker(f"127.0.0.1:{port}", connector, jars)
    finally:
        if process is not None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        shutil.rmtree(place, ignore_errors=True)


class Unavailable(Exception):
    """Something is not to be had from Maven Central."""


def connector_jars() -> list[Path]:
    """Return Spark's connector and what it needs; raises Unavailable where they cannot be had."""
    import pyspark

    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise Unavailable("it comes from Maven Central, and there is no mvn or java here")
    return sorted(_connector(pyspark.__version__).glob("*.jar"))


def _connector(spark: str) -> Path:
    for connector, tokens in _VERSIONS:
        artifacts = [f"{_CONNECTOR}:{connector.format(spark=spark)}", f"{_TOKENS}:{tokens.format(spark=spark)}"]
        with suppress(Unavailable):
            return fetched(artifacts + _WITH_CONNECTOR, transitive=False)
    raise Unavailable(f"no connector for Spark {spark}")


def fetched(artifacts: list[str], *, transitive: bool) -> Path:
    """Return a directory with the jars of artifacts, kept from one run to the next."""
    name = hashlib.sha256(" ".join(artifacts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semistream-tests" / name
    if (cache / "complete").exists():
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        pom = Path(place) / "pom.xml"
        pom.write_text(_pom(artifacts, transitive=transitive))
        command = [
            "mvn",
            "-B",
            "-q",
            "-ntp",
            "-f",
            str(pom),
            _PLUGIN,
            "-DincludeScope=runtime",
            f"-DoutputDirectory={cache}",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            raise Unavailable("mvn did not come to an end") from None
    if done.returncode:
        reasons = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["mvn failed"]
        raise Unavailable(reasons[0][:200])
    (cache / "complete").touch()
    return cache


def _pom(artifacts: list[str], *, transitive: bool) -> str:
    nothing_else = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = ""
    for artifact in artifacts:
        group, name, version = artifact.split(":")
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            f"{'' if transitive else nothing_else}</dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>semistream</groupId><artifactId>jars-for-tests</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _wait(process: subprocess.Popen[bytes], port: int, place: Path, seconds: float = 180) -> None:
    import socket

    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the broker does not answer; its log: {(place / 'log').read_text()[-1500:]}")
        time.sleep(0.3)
