"""``semistream bench spark-versions``: compare versions of PySpark by the rate of our join on a streaming DataFrame.

Each version has its own process, with the Python of an environment in which it is installed. All sessions are open at
once and take turns with the same files, one per micro-batch; the first one changes from turn to turn. The session waits
between its turns, and keeps its cache.

After the measured turns, each version joins the measured files once more and adds up a hash of each row. Two versions
have the same rows if their numbers of rows and their sums are equal.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.machine import describe_machine
from semistream_lab.benchmarks.fed_query import FedQuery, Note, counted_progress, times, writer
from semistream_lab.benchmarks.join_rates import BenchError, code_version
from semistream_lab.benchmarks.spark_data import TURNS, BenchPlan, build_relation, of_turn, write_files
from semistream_lab.benchmarks.spark_join import bench_session, our_join

__all__ = ["RatedVersion", "VersionProcess", "bench_versions"]

_CHECKED = "checked"


def bench_versions(
    plan: BenchPlan,
    pythons: list[Path],
    directory: Path,
    note: Note = lambda *_: None,
    open_version: Callable[[Path, BenchPlan, Path, Path], VersionProcess | RatedVersion] | None = None,
) -> dict[str, Any]:
    """Measure the installed version of PySpark and others.

    Parameters
    ----------
    plan
        What to measure. Settings of Spark's own join and of small micro-batches are not used.
    pythons
        Pythons of environments with the other versions.
    directory
        Directory of R and the stream, as in `bench spark`.
    note
        Called with the current step, and with the number of micro-batches that have ended.
    open_version
        Opens the session of a Python; by default a `VersionProcess`.

    Returns
    -------
    dict
        Ready for JSON: ``versions`` has the rate, the raw times, and number and sum of the rows by version; ``over``
        the rates divided by the installed version's; ``differing`` the versions whose rows are not those of the
        installed one.
    """
    write_files(plan, directory)
    with tempfile.TemporaryDirectory(dir=plan.place(directory)) as temporary, ExitStack() as stack:
        opened: dict[str, VersionProcess | RatedVersion] = {}
        opening: Callable[[Path, BenchPlan, Path, Path], VersionProcess | RatedVersion] = open_version or VersionProcess
        for number, python in enumerate([Path(sys.executable), *pythons]):
            note(f"opening {python}", 0)
            work = Path(temporary) / str(number)
            work.mkdir()
            one = opening(python, plan, directory, work)
            stack.callback(one.close)
            if one.version in opened:
                raise BenchError(f"{python} has PySpark {one.version}, which is measured already; give each one once")
            opened[one.version] = one
        found = _in_turns(opened, plan, note)
        for version, one in opened.items():
            note(f"rows of {version}", 0)
            found[version] |= one.rows()
    (newest, first), *others = found.items()
    return {
        "newest": newest,
        "versions": found,
        "over": {version: one["rows_per_second"] / first["rows_per_second"] for version, one in found.items()},
        "differing": [version for version, one in others if (one["rows"], one["sum"]) != (first["rows"], first["sum"])],
        "plan": asdict(plan),
        "machine": describe_machine(directory),
        "commit": code_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _in_turns(opened: dict[str, VersionProcess | RatedVersion], plan: BenchPlan, note: Note) -> dict[str, Any]:
    """Warm all sessions up one by one, then let them take turns."""
    names, first = list(opened), plan.filling + plan.warm_up
    measured = list(range(first, first + plan.batches))
    warm_up: dict[str, list[dict[str, Any]]] = {}
    progress: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name in names:
        note(f"warm-up: {name}", 0)
        warm_up[name] = opened[name].feed(list(range(first)))
        note("", first)
    for turn in range(TURNS):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            part = of_turn(measured, turn)
            note(f"turn {turn + 1}: {name}", 0)
            progress[name] += opened[name].feed(part)
            note("", len(part))
    return {name: times(progress[name], warm_up[name], plan.batch_rows) for name in names}


class RatedVersion:
    """The session of one version, in its process.

    Parameters
    ----------
    spark, plan, directory
        The session, and what it measures.
    work
        Directory for the query's files.
    """

    def __init__(self, spark: SparkSession, plan: BenchPlan, directory: Path, work: Path) -> None:
        self.version = spark.version
        self._spark, self._plan, self._directory, self._work = spark, plan, directory, work
        build_relation(spark, plan, directory)
        self._files = sorted(plan.stream(directory).glob("part-*.parquet"))[: len(plan.file_rows)]
        self._schema = spark.read.parquet(str(self._files[0])).schema
        self._query = FedQuery(spark, self._schema, "our join", self._joined, work, lambda *_: None)

    def feed(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Join the files with these numbers; return the progress of their micro-batches, as far as it is needed."""
        files, rows = [self._files[at] for at in numbers], [self._plan.file_rows[at] for at in numbers]
        return [{"durationMs": one["durationMs"]} for one in self._query.feed(files, rows)]

    def rows(self) -> dict[str, Any]:
        """Join the measured files once more; return the number of rows and the sum of their hashes."""
        first = self._plan.filling + self._plan.warm_up
        source = self._work / "checked"
        source.mkdir()
        for file in self._files[first : first + self._plan.batches]:
            os.link(file, source / file.name)

        def hashed(stream: DataFrame) -> DataFrame:
            joined = self._joined(stream)
            total = F.sum(F.xxhash64(*joined.columns).cast("decimal(38, 0)")).cast("string")
            return joined.observe(_CHECKED, total.alias("sum"))

        checkpoint = self._work / "checkpoint-checked"
        query = writer(self._spark, self._schema, hashed, source, checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = counted_progress("our join", query, [self._plan.batch_rows] * self._plan.batches)
        total = sum(int(one["observedMetrics"][_CHECKED]["sum"]) for one in progress)
        return {"rows": self._plan.batch_rows * self._plan.batches, "sum": str(total)}

    def _joined(self, stream: DataFrame) -> DataFrame:
        return our_join(stream, self._plan, self._directory)

    def close(self) -> None:
        """Stop the query."""
        self._query.query.stop()


class VersionProcess:
    """A `RatedVersion` in another process, with another Python, and the same methods."""

    def __init__(self, python: Path, plan: BenchPlan, directory: Path, work: Path) -> None:
        self._python, self._log = python, work / "log"
        variables = {**os.environ, "PYSPARK_PYTHON": str(python)}
        variables.pop("SPARK_HOME", None)  # it may be of another version
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=variables,
            )  # fmt: skip
        try:
            order = {"plan": asdict(plan), "directory": str(directory), "work": str(work)}
            self.version = str(self._ask(order)["version"])
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise

    def feed(self, numbers: list[int]) -> list[dict[str, Any]]:
        """See `RatedVersion.feed`."""
        found: list[dict[str, Any]] = self._ask({"feed": numbers})
        return found

    def rows(self) -> dict[str, Any]:
        """See `RatedVersion.rows`."""
        found: dict[str, Any] = self._ask({"rows": True})
        return found

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # if the process has ended, the missing answer shows it
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            tail = " ".join(self._log.read_text().split()[-80:])
            raise BenchError(f"the session of {self._python} ended with {self._process.wait()}: {tail}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()  # the process ends when it gets no more orders


def _serve(orders: TextIO, answers: TextIO) -> None:
    """Answer the orders of a `VersionProcess`."""

    def answer(found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    first = json.loads(orders.readline())
    plan = BenchPlan(**first["plan"])
    with (
        bench_session(plan) as spark,
        closing(RatedVersion(spark, plan, Path(first["directory"]), Path(first["work"]))) as rated,
    ):
        answer({"version": rated.version})
        for line in orders:
            order = json.loads(line)
            answer(rated.feed(order["feed"]) if "feed" in order else rated.rows())


if __name__ == "__main__":
    # what Spark prints must not be among the answers
    with os.fdopen(os.dup(1), "w") as own:
        os.dup2(2, 1)
        _serve(sys.stdin, own)
