"""The same join in a database (SSIJ §VI-C): its index join, on this machine's disk and clock.

SQLite is always available. PostgreSQL and MariaDB are measured if their servers are installed: each is started for one
measurement, on a socket in its own directory, and stopped again. The stream is a table, in memory if the database has
such tables. R is a table with an index on its key. The plan is forced to be the index join. Each database has a buffer
pool of a given size. If control groups can be created, all its memory is limited, including its page cache.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np

from semistream.core.units import format_bytes
from semistream.workloads.keys.key_source import UniformKeys
from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import Point, Workload

__all__ = ["DatabaseError", "join_rate"]

Record = dict[str, Any]

_STUDENT_TWO = 4.30  # 95 % quantile of Student's t for 2 degrees of freedom
_FILLER = 120  # bytes of a row of R without its key
_BESIDE = {"sqlite": 64_000_000, "postgresql": 64_000_000, "mariadb": 160_000_000}
"""Bytes of a server in addition to its pool and half as much page cache. MariaDB needs 80 MB before its first table."""
_GROUPS = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
    ("/sys/fs/cgroup", "memory.max", "memory.events"),
)
_JOIN = "SELECT COUNT(*), SUM(LENGTH(r.filler)) FROM s JOIN r ON s.k = r.k"


class DatabaseError(RuntimeError):
    """An installed database failed or gave a wrong result."""


def join_rate(point: Point, directory: Path) -> Record:
    """Return the stream tuples per second that a system joins, or why it cannot be measured here."""
    system = point.settings["system"]
    if system == "semistream":
        return _ours(point, directory)
    measure = {"sqlite": _sqlite, "postgresql": _postgresql, "mariadb": _mariadb}[system]
    directory.mkdir(parents=True, exist_ok=True)
    # in a separate process: the limit must not apply to this one
    most = int(1.5 * point.settings["pool"]) + _BESIDE[system]
    with (
        _bounded(most) as group,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _enter, (group,)) as alone,
    ):
        try:
            found = alone.submit(measure, point, directory).result()
        except (DatabaseError, BrokenProcessPool) as error:
            if killed := _killed(group):
                raise DatabaseError(
                    f"{system} needs more memory than the {format_bytes(most)} of its limit (a pool of "
                    f"{format_bytes(point.settings['pool'])} and the rest): the system killed {killed} of its processes"
                ) from error
            raise
    if isinstance(found, str):
        return {"skipped": found}
    rates = [point.settings["tuples"] / seconds for seconds in found]
    kept = "its page cache limited too" if group else "its page cache unlimited, because this system cannot limit it"
    text = f"a pool of {point.settings['pool'] / 1e6:g} MB, {kept}"
    return {"rate": float(np.mean(rates)), "interval": _spread(rates), "windows": rates, "bounded": text}


@contextlib.contextmanager
def _bounded(most: int) -> Iterator[str]:
    """Create a control group with limited memory, page cache included; an empty name if that is not possible."""
    group = ""
    for root, limit, _ in _GROUPS:
        if not (Path(root) / "cgroup.procs").exists():
            continue
        try:
            made = tempfile.mkdtemp(prefix="semistream-", dir=root)
        except OSError:
            continue
        try:
            (Path(made) / limit).write_text(str(most))
            group = made
            break
        except OSError:
            os.rmdir(made)
    try:
        yield group
    finally:
        if group:
            with contextlib.suppress(OSError):  # a process may not have ended yet
                os.rmdir(group)


def _killed(group: str) -> int:
    """Return how many processes of a control group the system has killed for lack of memory."""
    for root, _, events in _GROUPS:
        if group and Path(group).parent == Path(root):
            counts = dict(line.split() for line in (Path(group) / events).read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def _enter(group: str) -> None:
    """Move this process, and all it will start, into a control group."""
    if group:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def _spread(rates: Sequence[float]) -> float:
    return float(_STUDENT_TWO * np.std(rates, ddof=1) / len(rates) ** 0.5) if len(rates) == 3 else 0.0


def _keys(workload: Workload, tuples: int) -> list[int]:
    """Return the keys of the stream, which are the same for all systems."""
    listed: list[int] = UniformKeys(workload.rows // workload.rows_per_key, workload.seed).keys(0, tuples).tolist()
    return listed


def _ours(point: Point, directory: Path) -> Record:
    """Measure SSIJ with its results, from the first tuple to the last, like a query."""
    sides = open_sides(point.workload, "real", directory)
    tuples = int(point.settings["tuples"])
    with sides.relation:
        rates = []
        for at in range(point.windows):
            run = Run(point, sides)
            batches = [sides.batch(begin, min(65_536, tuples - begin)) for begin in range(0, tuples, 65_536)]
            began = time.perf_counter()
            rows = sum(result.num_rows for result in run.join.process(batches))
            rates.append(tuples / (time.perf_counter() - began))
            if rows != tuples * point.workload.rows_per_key:
                raise DatabaseError(f"run {at}: {rows} results instead of {tuples * point.workload.rows_per_key}")
    return {"rate": float(np.mean(rates)), "interval": _spread(rates), "windows": rates}


def _sqlite(point: Point, directory: Path) -> list[float] | str:
    workload = point.workload
    with tempfile.TemporaryDirectory(dir=directory, prefix="sqlite-") as place:
        base = sqlite3.connect(Path(place) / "r.db")
        with contextlib.closing(base):
            base.execute("PRAGMA journal_mode = OFF")
            base.execute("PRAGMA synchronous = OFF")
            base.execute(f"PRAGMA cache_size = -{point.settings['pool'] // 1000}")
            base.execute("PRAGMA temp_store = MEMORY")
            base.execute("CREATE TABLE r (k INTEGER, filler BLOB)")
            filler = bytes(_FILLER)
            base.executemany(
                "INSERT INTO r VALUES (?, ?)", ((row // workload.rows_per_key, filler) for row in range(workload.rows))
            )
            base.execute("CREATE INDEX r_k ON r (k)")
            base.execute("ANALYZE")
            base.execute("CREATE TEMP TABLE s (k INTEGER)")
            keys = _keys(workload, point.settings["tuples"])
            base.executemany("INSERT INTO s VALUES (?)", ((key,) for key in keys))
            base.commit()
            # the stream is the outer table, R is looked up
            query = _JOIN.replace("s JOIN r", "s CROSS JOIN r INDEXED BY r_k").replace(" ON ", " WHERE ")
            seconds = []
            for _ in range(point.windows):
                began = time.perf_counter()
                (rows, _), *_ = base.execute(query).fetchall()
                seconds.append(time.perf_counter() - began)
                _check(rows, point)
            return seconds


def _check(rows: int, point: Point) -> None:
    expected = point.settings["tuples"] * point.workload.rows_per_key
    if rows != expected:
        raise DatabaseError(f"{point.settings['system']} found {rows} results instead of {expected}")


def _program(name: str, *places: str) -> Path | None:
    """Return the path of a server's program: on ``PATH``, or where distributions install it."""
    if found := shutil.which(name):
        return Path(found)
    for pattern in places:
        for candidate in sorted(Path("/").glob(pattern), reverse=True):
            if (candidate / name).exists():
                return candidate / name
    return None


def _user(name: str) -> dict[str, Any]:
    """Return the arguments that start a process as another user if this one is root."""
    if os.getuid() != 0:
        return {}
    pwd.getpwnam(name)
    return {"user": name}


@contextlib.contextmanager
def _server(command: Sequence[str], ready: Sequence[str], place: Path, identity: dict[str, Any]) -> Iterator[None]:
    """Run a server until the block ends; the block begins when the command ``ready`` succeeds."""
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **identity)
    try:
        for _ in range(300):
            if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
                break
            if process.poll() is not None:
                raise DatabaseError(f"the server stopped: {(place / 'log').read_text(errors='replace')[-300:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextlib.contextmanager
def _place(directory: Path, name: str, identity: dict[str, Any]) -> Iterator[Path]:
    """Create a directory that belongs to the server's user, outside of directories that only root may enter."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir="/tmp" if identity else directory) as text:
        place = Path(text)
        if identity:
            shutil.chown(place, user=identity["user"])
        yield place


def _client(command: Sequence[str], text: str, **options: Any) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise DatabaseError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")
    return str(done.stdout)


def _postgresql(point: Point, directory: Path) -> list[float] | str:
    programs = [
        _program(name, "usr/lib/postgresql/*/bin") for name in ("initdb", "postgres", "psql")
    ]  # fmt: skip
    if None in programs:
        return "PostgreSQL is not installed"
    initdb, postgres, psql = (str(program) for program in programs)
    try:
        identity = _user("postgres")
    except KeyError:
        return "PostgreSQL does not run as root, and there is no user postgres"
    workload, tuples = point.workload, point.settings["tuples"]
    with _place(directory, "postgresql", identity) as place:
        data = place / "data"
        _client([initdb, "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"], "", **identity)
        shared = f"{max(8, point.settings['pool'] // 1_000_000)}MB"
        settings = {"listen_addresses": "", "unix_socket_directories": str(place), "shared_buffers": shared,
                    "fsync": "off", "autovacuum": "off"}  # fmt: skip
        command = [postgres, "-D", str(data), *(part for pair in settings.items() for part in ("-c", "=".join(pair)))]
        client = [psql, "-X", "-q", "-A", "-t", "-h", str(place), "-U", "postgres", "-d", "postgres",
                  "-v", "ON_ERROR_STOP=1"]  # fmt: skip
        with _server(command, [*client, "-c", "SELECT 1"], place, identity):
            keys = "\n".join(map(str, _keys(workload, tuples)))
            _client(client, f"""
                CREATE UNLOGGED TABLE r AS SELECT (i / {workload.rows_per_key})::bigint AS k, repeat('x', {_FILLER})
                    AS filler FROM generate_series(0, {workload.rows - 1}) AS i;
                CREATE INDEX r_k ON r (k);
                CREATE UNLOGGED TABLE s (k bigint);
                COPY s FROM STDIN;\n{keys}\n\\.
                ANALYZE r; ANALYZE s;
            """.replace("                ", ""))  # fmt: skip
            # allow only the index join, in one process
            plan = "".join(f"SET enable_{way} = off; " for way in ("hashjoin", "mergejoin", "material"))
            plan += "SET max_parallel_workers_per_gather = 0; SET enable_seqscan = on;\n\\timing on\n"
            output = _client(client, plan + f"{_JOIN};\n" * point.windows)
    return _timed(output, point, "Time: ", "|", 1e-3)


def _timed(output: str, point: Point, mark: str, separator: str, unit: float) -> list[float]:
    """Parse the results and times that a client printed."""
    seconds = []
    for line in output.splitlines():
        if line.startswith(mark):
            seconds.append(float(line.removeprefix(mark).split()[0]) * unit)
        elif separator in line:
            _check(int(line.split(separator)[0]), point)
    if len(seconds) < point.windows:
        raise DatabaseError(f"{point.settings['system']} printed no times: {output[-300:]}")
    return seconds[-point.windows :]


def _mariadb(point: Point, directory: Path) -> list[float] | str:
    server = _program("mariadbd", "usr/sbin", "usr/libexec")
    install, client_program = _program("mariadb-install-db"), _program("mariadb")
    if server is None or install is None or client_program is None:
        return "MariaDB is not installed"
    try:
        identity = _user("mysql")
    except KeyError:
        return "MariaDB does not run as root, and there is no user mysql"
    workload, tuples = point.workload, point.settings["tuples"]
    owner = [f"--user={identity['user']}"] if identity else []
    with _place(directory, "mariadb", identity) as place:
        data, socket = place / "data", place / "socket"
        _client([str(install), "--no-defaults", f"--datadir={data}", "--skip-test-db",
                 "--auth-root-authentication-method=normal", *owner], "")  # fmt: skip
        pool = f"--innodb-buffer-pool-size={max(8, point.settings['pool'] // 1_000_000)}M"
        command = [str(server), "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking", pool,
                   "--max-heap-table-size=1G", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0",
                   # small buffers for the engines that are not measured
                   "--key-buffer-size=8M", "--aria-pagecache-buffer-size=8M", *owner]  # fmt: skip
        client = [str(client_program), "--no-defaults", f"--socket={socket}", "-u", "root", "-N", "-B"]
        with _server(command, [*client, "-e", "SELECT 1"], place, {}):
            keys = _keys(workload, tuples)
            rows = "".join(
                f"INSERT INTO s VALUES {','.join(f'({key})' for key in keys[begin : begin + 5000])};\n"
                for begin in range(0, tuples, 5000)
            )
            _client(
                [*client],
                f"""
                CREATE DATABASE d; USE d; SET SESSION max_recursive_iterations = 100000000;
                CREATE TABLE r (k BIGINT, filler VARCHAR({_FILLER}), KEY (k)) ENGINE = InnoDB;
                INSERT INTO r SELECT seq DIV {workload.rows_per_key}, REPEAT('x', {_FILLER})
                    FROM seq_0_to_{workload.rows - 1};
                CREATE TABLE s (k BIGINT) ENGINE = MEMORY;
                {rows}
                ANALYZE TABLE r;
            """,
            )
            query = _JOIN.replace("s JOIN r", "s STRAIGHT_JOIN r FORCE INDEX (k)")
            timed = "SET @began = NOW(6); {}; SELECT CONCAT('Time: ', TIMESTAMPDIFF(MICROSECOND, @began, NOW(6)));\n"
            output = _client([*client, "d"], timed.format(query) * point.windows)
    return _timed(output, point, "Time: ", "\t", 1e-6)
