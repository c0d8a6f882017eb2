"""Spark's own cluster on this machine: a master, and workers that share no directory, each a machine of its own.

A worker has an address of its own, too. Spark takes executors at one address for processes of one machine, and reads
their shuffle files from the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
import pytest

import semistream
from servers import free_port

__all__ = ["Cluster", "Machine"]

_APART = """
set -e
tmp=$1; keep=$2; shift 2
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs "$tmp"
IFS=:
for place in $keep; do mkdir -p "$tmp/${place#/tmp/}"; mount --bind "$place" "$tmp/${place#/tmp/}"; done
mount --rbind "$tmp" /tmp
exec "$@"
"""
"""Empty /tmp and /dev/shm, but for places below /tmp that a worker is run from."""


def _namespace(folder: Path) -> list[str]:
    """Return what comes before a command that is to run apart from all others; needs a directory of its own."""
    from semistream.spark.java import use_java

    use_java()
    folder.mkdir()
    places = [sys.prefix, Path(pyspark.__file__).parent, Path(__file__).parent, Path(semistream.__file__).parents[1]]
    needed = {os.path.abspath(place) for place in [*places, *filter(None, [os.environ.get("JAVA_HOME")])]}
    keep = ":".join(sorted(place for place in needed if place.startswith("/tmp/")))
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _APART, "sh", str(folder), keep]


@dataclass(frozen=True)
class Machine:
    """A worker, with all that it starts."""

    process: psutil.Process

    def path(self, inside: str) -> Path:
        """Return a path of this machine as it is seen from here."""
        return Path(f"/proc/{self.process.pid}/root{inside}")

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Return what runs there and has ``part`` in its command."""
        found = []
        for process in self.process.children(recursive=True):
            with suppress(psutil.Error):
                if part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def python_workers(self) -> list[psutil.Process]:
        """Return the processes in which tasks run: children of Spark's daemon."""
        daemons = self.processes("pyspark.daemon pyspark.worker")
        return [process for process in daemons if process.ppid() in {each.pid for each in daemons}]

    def lose(self) -> None:
        """Kill everything there at once."""
        for process in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.Error):
                process.kill()


class Cluster:
    """A master and its machines. Needs the right to make mount namespaces; a test is skipped where there is none."""

    def __init__(self, folder: Path, machines: int = 2) -> None:
        tried = shutil.which("unshare") and subprocess.run([*_namespace(folder / "tried"), "true"], capture_output=True)
        if not tried or tried.returncode:
            pytest.skip("mount namespaces are not allowed here, so that all workers would see the same directories")
        self._folder = folder
        self.log = folder / "cluster.log"
        self.machines: list[Machine] = []
        self._addresses = (f"127.0.0.{number}" for number in range(2, 255))
        self._started: list[subprocess.Popen[bytes]] = []
        self._command = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        port = free_port()
        self.address = f"spark://127.0.0.1:{port}"
        try:
            self._start([], "127.0.0.1", "master.Master", "--port", str(port))
            self._wait()
            for _ in range(machines):
                self.add()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        """Wait for the master: a worker that comes too early tries again only after ten seconds."""
        deadline = time.monotonic() + 300
        while "New state: ALIVE" not in self.log.read_text(errors="replace"):
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)

    def add(self) -> None:
        """Start one more machine, with one core."""
        host = next(self._addresses)
        more = [self.address, "--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work"]
        apart = _namespace(self._folder / host)
        self.machines.append(Machine(psutil.Process(self._start(apart, host, "worker.Worker", *more).pid)))

    def close(self) -> None:
        for machine in self.machines:
            with suppress(psutil.Error):
                machine.lose()
        for process in self._started:
            process.kill()
            process.wait()

    def _start(self, before: list[str], host: str, part: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "128m", "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false",
            "SEMISTREAM_LOCAL_DIR": "/tmp/tier",
        }  # fmt: skip
        command = [*before, self._command, f"org.apache.spark.deploy.{part}", "--host", host, "--webui-port", "0"]
        with open(self.log, "ab") as log:
            process = subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log)
        self._started.append(process)
        return process
