"""Test older versions of PySpark: an environment for each, and the tests in ``version_tests.txt``.

The environments lie in ``build/spark-*``. Each has its PySpark, and takes all other packages from the environment that
runs this program. ``--record`` keeps what was tested in ``docs/results/spark-versions.json``, from which the table of
supported versions is made; then the newest version, which is the one in the environment, is tested in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
import venv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "spark-versions.json"
TESTS = Path(__file__).parent / "version_tests.txt"
OLDER = ("4.0.5", "4.1.4", "4.2.1")
"""The last patch of each older version."""


def environment(version: str) -> Path:
    """Return the Python of an environment with a version of PySpark; make it unless it is there."""
    place = ROOT / "build" / f"spark-{version}"
    python = place / "bin" / "python"
    if not (place / ".installed").exists():
        venv.create(place, clear=True, symlinks=True)
        (site,) = (place / "lib").glob("python*/site-packages")
        # packages of the other environment come after those of this one
        (site / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        pip = [sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, "--no-deps", f"pyspark=={version}"], check=True)
        (place / ".installed").touch()
    return python


def tested(python: Path, seconds: float) -> dict[str, Any]:
    """Run the tests with a Python; return what pytest says about them."""
    listed = [line for line in TESTS.read_text().splitlines() if not line.startswith("#")]
    began = time.monotonic()
    command = [str(python), "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *listed]
    variables = {**os.environ, "PYSPARK_PYTHON": str(python)}
    variables.pop("SPARK_HOME", None)
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, timeout=seconds)
    print(done.stdout, end="", flush=True)
    last = done.stdout.strip().splitlines()[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    return {
        "passed": counts.get("passed", 0),
        "skipped": counts.get("skipped", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0) + (done.returncode != 0 and not counts),
        "seconds": round(time.monotonic() - began),
        "python": platform.python_version(),
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def main() -> int:
    """Test the versions; return 1 if a test failed."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("versions", nargs="*", help="versions of PySpark; by default all older ones")
    asked.add_argument("--record", action="store_true", help="keep the result, and test the newest version as well")
    asked.add_argument("--until", type=float, default=float("inf"), help="start no version after so many seconds")
    asked.add_argument("--seconds", type=float, default=900, help="the most that the tests of one version may take")
    given = asked.parse_args()
    found: dict[str, Any] = {}
    began = time.monotonic()
    if given.record:
        import pyspark

        found[pyspark.__version__] = tested(Path(sys.executable), given.seconds)
    for version in given.versions or OLDER:
        if time.monotonic() - began > given.until:
            print(f"PySpark {version} is left out: no time is left; run by hand: make spark-versions")
            continue
        print(f"PySpark {version}", flush=True)
        found[version] = tested(environment(version), given.seconds)
    for version, outcome in found.items():
        print(f"PySpark {version}: {outcome}")
    failed = any(outcome["failed"] for outcome in found.values())
    if given.record and not failed:
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**kept, **found}, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
