"""Real servers for tests: started once a session from Debian's packages, on the loopback address, with a password.

Where a package is missing it is installed if this process may (root on a Debian machine); where it may not, or nothing
is reached, the tests that need the server are skipped and say why.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Server", "free_port", "mariadb", "postgresql", "wait_until"]

USER, DATABASE = "semistream", "warehouse"


@dataclass(frozen=True)
class Server:
    """A running server: its address without a password, and the password."""

    url: str
    password: str


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL cluster of its own, with an empty database."""
    binaries = _installed("postgresql", "initdb", _postgresql_directories)
    with ExitStack() as stack:
        place = stack.enter_context(_place("postgresql", user="postgres"))
        password, port = secrets.token_urlsafe(18), free_port()
        _write_private(place / "password", password, "postgres")
        data = place / "data"
        _run(
            [binaries / "initdb", "-D", data, "-U", USER, "--auth=scram-sha-256", "--pwfile", place / "password",
             "--no-sync", "--encoding=UTF8", "--locale=C"],
            user="postgres",
        )  # fmt: skip
        settings = {
            "listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": str(place), "fsync": "off",
            "max_connections": "30", "shared_buffers": "32MB",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        process = stack.enter_context(_process([binaries / "postgres", "-D", data, *options], place, user="postgres"))
        environment = {"PGPASSWORD": password, "PATH": os.environ["PATH"]}
        connect = [binaries / "psql", "-h", "127.0.0.1", "-p", port, "-U", USER, "-d", "postgres", "-q", "-c"]
        wait_until(lambda: _answers([*connect, "SELECT 1"], environment), process, place)
        _run([*connect, f"CREATE DATABASE {DATABASE}"], environment=environment)
        yield Server(f"postgresql://{USER}@127.0.0.1:{port}/{DATABASE}", password)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """A MariaDB server of its own, with an empty database."""
    binaries = _installed("mariadb-server", "mariadbd", lambda: [Path("/usr/sbin"), Path("/usr/bin")])
    with ExitStack() as stack:
        place = stack.enter_context(_place("mariadb", user="mysql"))
        password, port = secrets.token_urlsafe(18), free_port()
        data, sock = place / "data", place / "socket"
        install = shutil.which("mariadb-install-db")
        assert install is not None
        owner = ["--user=mysql"] if os.getuid() == 0 else []
        _run(
            [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal",
             "--skip-test-db", *owner],
        )  # fmt: skip
        process = stack.enter_context(
            _process(
                [binaries / "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={sock}", f"--port={port}",
                 "--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0",
                 "--innodb-buffer-pool-size=64M", f"--pid-file={place / 'pid'}", *owner],
                place,
            )
        )  # fmt: skip
        connect = ["mariadb", "--no-defaults", f"--socket={sock}", "-u", "root", "-e"]
        wait_until(lambda: _answers([*connect, "SELECT 1"], dict(os.environ)), process, place)
        # Through standard input: a command line can be read by every user of the machine.
        _run(
            connect[:-1],
            text=f"CREATE DATABASE {DATABASE}; CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{password}'; "
            f"GRANT ALL ON {DATABASE}.* TO '{USER}'@'127.0.0.1';",
        )
        yield Server(f"mariadb://{USER}@127.0.0.1:{port}/{DATABASE}", password)


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    while True:
        # below those that the system gives to whoever connects: until a server has started, nobody takes it
        port = random.randrange(20_000, 32_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], place: Path, seconds: float = 120) -> None:
    """Wait for a server to answer; fail with the end of its log if it stops, or does not answer in time."""
    deadline = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (place / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the server under {place} does not answer; the end of its log:\n{log}")
        time.sleep(0.2)


def _postgresql_directories() -> list[Path]:
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _installed(package: str, program: str, directories: Callable[[], Sequence[Path]]) -> Path:
    """Return the directory of a server's programs, or skip the test."""
    if found := _directory_of(program, directories()):
        return found
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"{package} is not installed, and only root on a Debian machine may install it")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", package]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        if done.returncode:
            pytest.skip(f"{package} cannot be installed: {done.stderr.strip()[-300:]}")
    if found := _directory_of(program, directories()):
        return found
    pytest.skip(f"{package} has been installed, but there is no {program} where it should be")


def _directory_of(program: str, directories: Sequence[Path]) -> Path | None:
    return next((directory for directory in directories if (directory / program).exists()), None)


@contextmanager
def _place(name: str, user: str) -> Iterator[Path]:
    """Make a directory that the server's user may enter; pytest's own are closed to others than root."""
    place = Path(tempfile.mkdtemp(prefix=f"semistream-{name}-"))
    try:
        if os.getuid() == 0:
            shutil.chown(place, user)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write_private(path: Path, text: str, user: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    if os.getuid() == 0:
        shutil.chown(path, user)


@contextmanager
def _process(command: Sequence[object], place: Path, user: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server as long as the block lasts."""
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=log, stderr=subprocess.STDOUT, cwd=place, **_as(user)
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(
    command: Sequence[object], user: str | None = None, environment: dict[str, str] | None = None, text: str = ""
) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, input=text, env=environment, cwd="/",
        timeout=300, **_as(user),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-1000:]}{done.stdout[-1000:]}")


def _answers(command: Sequence[object], environment: dict[str, str]) -> bool:
    parts = [str(part) for part in command]
    return subprocess.run(parts, capture_output=True, env=environment, timeout=60).returncode == 0


def _as(user: str | None) -> dict[str, object]:
    """Return who runs a process: PostgreSQL refuses to be run by root."""
    return {"user": user, "group": user, "extra_groups": []} if user and os.getuid() == 0 else {}
