"""Test older versions of PySpark: an environment for each, and the tests in ``version_tests.txt``.

All listed tests run, whatever their marks; the version fails if one of them did not. ``--today`` runs every second
one. The environments lie in ``build/spark-*``. Each has its PySpark, and takes all other packages from the environment
that runs this program. ``--record`` keeps what was tested in ``docs/results/versions.json``, from which the table of
tested versions is made (``docs/_site/tables.py``). For another Python, run this program with it and ``--installed``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Sequence
from datetime import UTC, date, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "versions.json"
TESTS = Path(__file__).parent / "version_tests.txt"
OLDER = ("4.0.5", "4.1.4", "4.2.1")
"""The last patch of each older version."""
TURNS = 2
"""In how many parts the tests of a version run with ``--today``: all of them take minutes."""
QUICK = ["-n", "2", "-m", "not slow and not long and not spark and not server", "tests", "lab/tests"]
"""The tests of ``make quick``."""


class LeftOut(Exception):
    """A version that could not be tested, which says nothing about it."""


def of_day(day: date) -> str:
    """Return the older version whose turn it is: one each day."""
    return OLDER[day.toordinal() % len(OLDER)]


def listed_tests() -> list[str]:
    """Return the names of the tests that each version runs."""
    return [line for line in TESTS.read_text().splitlines() if line and not line.startswith("#")]


def part_of_day(day: date) -> list[str]:
    """Return the tests of a day: another part as soon as each older version had its turn with the one before."""
    return listed_tests()[day.toordinal() // len(OLDER) % TURNS :: TURNS]


def environment(version: str, seconds: float) -> Path:
    """Return the Python of an environment with a version of PySpark: this one, or one in ``build``, made once."""
    if version == installed_version("pyspark"):
        return Path(sys.executable)
    place = ROOT / "build" / f"spark-{version}"
    python = place / "bin" / "python"
    if not (place / ".installed").exists():
        venv.create(place, clear=True, symlinks=True)
        (site,) = (place / "lib").glob("python*/site-packages")
        # packages of the other environment come after those of this one
        (site / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        pip = [sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check", "install", "-q"]
        try:
            subprocess.run([*pip, "--no-deps", f"pyspark=={version}"], check=True, timeout=seconds)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise LeftOut(f"it could not be installed: {error}") from error
        (place / ".installed").touch()
    return python


def counted(python: Path, arguments: list[str], seconds: float, listed: Sequence[str] = ()) -> dict[str, int]:
    """Run tests with a Python; return how many passed, were skipped and failed.

    A listed test that pytest did not run counts as failed.

    Raises
    ------
    LeftOut
        If they take longer than ``seconds``, and none has failed until then.
    """
    began = time.monotonic()
    variables = {**os.environ, "PYSPARK_PYTHON": str(python)}
    variables.pop("SPARK_HOME", None)
    command = [str(python), "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", *arguments]
    said = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            said, _ = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            said, _ = running.communicate()
    summary = re.findall(r"^(?:FAILED|ERROR) .*", said, re.MULTILINE)
    slowest = re.findall(r"^\d+\.\d+s (?:setup|call) .*", said, re.MULTILINE)
    print(said[-20_000:] if running.returncode else "\n".join(slowest), flush=True)
    if running.returncode == -signal.SIGKILL and not re.search(r" (?:FAILED|ERROR) ", said):
        raise LeftOut(f"its tests took more than {seconds:.0f} s")
    ran = set(re.findall(r"^(\S+::.+?) (?:PASSED|SKIPPED|FAILED|ERROR)\b", said, re.MULTILINE))
    missing = [name for name in listed if name not in ran]
    if missing:
        print("Listed, but neither passed nor skipped nor failed:", *missing, sep="\n  ", flush=True)
    last = said.strip().splitlines()[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return {
        "passed": counts.get("passed", 0),
        "skipped": counts.get("skipped", 0),
        "failed": max(failed, len(summary), running.returncode != 0) + len(missing),
        "seconds": round(time.monotonic() - began),
    }


def tested(version: str, python: Path, seconds: float, tests: Sequence[str]) -> dict[str, Any]:
    """Run representative tests of a version; return what happened."""
    print(f"PySpark {version}, Python {platform.python_version()}", flush=True)
    return {
        "pyspark": version,
        "python": platform.python_version(),
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
        "spark": counted(python, ["--durations", "0", "--durations-min", "3", *tests], seconds, tests),
    }


def failures(run: dict[str, Any]) -> int:
    """Return how many tests of a run failed."""
    return sum(int(run[part]["failed"]) for part in ("spark", "quick") if part in run)


def record(found: dict[str, Any]) -> None:
    """Keep a result. It replaces that of the same version of PySpark and Python."""
    before = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []

    def version(run: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(int, run[name].split(".")[:2])) for name in ("pyspark", "python"))

    kept = {version(run): run for run in (*before, found)}
    RESULTS.write_text(json.dumps({"runs": [kept[name] for name in sorted(kept)]}, indent=1) + "\n")


def main() -> int:
    """Test the versions; return 1 if a test failed."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("versions", nargs="*", help="versions of PySpark; by default all older ones")
    asked.add_argument("--installed", action="store_true", help="the installed version, and the tests of make quick")
    asked.add_argument("--today", action="store_true", help="the older version and the tests whose turn it is")
    asked.add_argument("--record", action="store_true", help="keep the result of each version of which no test failed")
    asked.add_argument("--until", type=float, default=float("inf"), help="start no version after so many seconds")
    asked.add_argument("--seconds", type=float, default=1800, help="the most that one version may take")
    given = asked.parse_args()
    versions = given.versions or ([of_day(datetime.now(UTC).date())] if given.today else list(OLDER))
    if given.today and given.record:
        asked.error("--today runs a part of the tests: a record needs all of them")
    tests = part_of_day(datetime.now(UTC).date()) if given.today else listed_tests()
    began, left_out, found = time.monotonic(), [], []
    for version in [installed_version("pyspark")] if given.installed else versions:
        first = time.monotonic()
        try:
            if first - began > given.until:
                raise LeftOut("no time is left")
            python = Path(sys.executable) if given.installed else environment(version, given.seconds)
            found.append(tested(version, python, given.seconds - (time.monotonic() - first), tests))
            if given.installed:
                found[-1]["quick"] = counted(python, QUICK, given.seconds)
            if given.record and not failures(found[-1]):
                record(found[-1])
        except LeftOut as reason:
            left_out.append(f"PySpark {version} is left out: {reason}; run: {sys.executable} {__file__} {version}")
    for run in found:
        print(f"PySpark {run['pyspark']} on Python {run['python']}: {run['spark']} {run.get('quick', '')}")
    print("\n".join(left_out))
    return int(any(map(failures, found)) or (bool(left_out) and not given.today))


if __name__ == "__main__":
    sys.exit(main())
