"""A real server that speaks S3, s3proxy, from what is published on Maven Central."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_broker import Unavailable, fetched
from servers import free_port

__all__ = ["s3proxy"]

# Its own dependencies have annotations that are too old for its other dependencies.
_SERVER = ["org.gaul:s3proxy:4.1.0", "com.fasterxml.jackson.core:jackson-annotations:2.21"]
_QUIET = "<configuration><root level='ERROR'/></configuration>"


@pytest.fixture(scope="session")
def s3proxy() -> Iterator[str]:
    """The URL of a server with a bucket of the name ``bucket``, whose objects are files."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("s3proxy comes from Maven Central, and there is no mvn or java here")
    try:
        jars = fetched(_SERVER, transitive=True)
    except Unavailable as error:
        pytest.skip(f"s3proxy cannot be had from Maven Central: {error}")
    place = Path(tempfile.mkdtemp(prefix="semistream-s3proxy-"))
    (place / "data" / "bucket").mkdir(parents=True)
    url = f"http://127.0.0.1:{free_port()}"
    settings = {
        "s3proxy.endpoint": url, "s3proxy.authorization": "aws-v2-or-v4", "s3proxy.identity": "someone",
        "s3proxy.credential": "very-secret-word", "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(place / "data"), "jclouds.identity": "local", "jclouds.credential": "local",
    }  # fmt: skip
    (place / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (place / "logback.xml").write_text(_QUIET)
    process = None
    try:
        with open(place / "log", "wb") as log:
            command = ["java", "-Xmx256m", f"-Dlogback.configurationFile={place}/logback.xml", "-cp", f"{jars}/*"]
            command += ["org.gaul.s3proxy.Main", "--properties", str(place / "settings")]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        _wait(process, url, place / "log")
        yield url
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(place, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                why = log.read_text(errors="replace")[-300:]
                pytest.skip(f"s3proxy does not start here (Java {os.environ.get('JAVA_HOME', 'of the path')}): {why}")
            time.sleep(0.2)
