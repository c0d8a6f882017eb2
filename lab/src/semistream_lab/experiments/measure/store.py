"""Raw results: an append-only file of JSON lines.

There is one file per device and scale. An ``environment`` line describes the conditions of the ``result`` lines after
it: versions, machine, constants, commit and a digest of the code that matters. A result contains its whole point. A
``models`` line contains the rates that the models of a later version give for earlier results.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import semistream
import semistream_lab
from semistream.core.errors import SemistreamError
from semistream.core.machine import describe_machine
from semistream_lab.experiments.measure.machine_costs import constants_of
from semistream_lab.experiments.spec import DeviceKind, Point, Scale, digest

__all__ = ["COMMITTED", "ResultsError", "Store", "code_version"]

Record = dict[str, Any]

COMMITTED = Path(semistream_lab.__file__).parents[3] / "docs" / "results"
"""Results in the repository, one directory per device. An installed package has none."""

# Code that a measurement depends on. Claims, plots and reports can change without a new measurement.
_MEASURED_BY = {
    semistream: (
        "core", "workloads", "relation", "structures", "joins", "costs", "tuner/calibration.py", "tuner/search.py",
    ),
    semistream_lab: ("workloads", "experiments/measure"),
}  # fmt: skip


class ResultsError(SemistreamError):
    """A results file is missing or cannot be read."""


@functools.cache
def code_version() -> str:
    """Return a digest of the source files that measurements depend on."""
    found = hashlib.sha256()
    for package, names in _MEASURED_BY.items():
        root = Path(str(package.__file__)).parent
        for place in (root / name for name in names):
            for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if file.suffix in (".py", ".json") and file.is_file():
                    found.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def commit() -> str:
    """Return the commit of the package, with ``+`` if files have changed since; ``unknown`` without git."""
    root = Path(semistream.__file__).parent
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return f"{head}+" if _git(root, "status", "--porcelain", "--", str(root)) else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Store:
    """The results of one device and scale.

    Parameters
    ----------
    directory
        Directory of the file. It need not exist yet.
    """

    def __init__(self, directory: Path, device: DeviceKind, scale: Scale) -> None:
        self.path = directory / f"{device}-{scale}.jsonl"
        self.data = directory / "data"
        """Directory of what many points share: relations, generated tables, measured constants."""
        self.device, self.scale = device, scale
        self._environment: str | None = None

    def results(self, code: str | None = None) -> dict[str, Record]:
        """Return the newest result of each point, by its digest; with ``code``, only results of that version."""
        found: dict[str, Record] = {}
        environment: Record = {}
        for line in self._lines():
            if "environment" in line:
                environment = line["environment"]
            elif "models" in line:
                for name in line["models"]["rates"].keys() & found.keys():
                    found[name] |= line["models"]["rates"][name]
            elif code is None or environment.get("code") == code:
                found[line["digest"]] = {**line["result"], "environment": environment}
        return found

    def environments(self) -> list[Record]:
        """Return the conditions of the results: versions, machine, constants and commit of each run."""
        return [line["environment"] for line in self._lines() if "environment" in line]

    def models_of(self) -> str | None:
        """Return the commit of the models, if it is not the commit of the runs."""
        last = None
        for line in self._lines():
            last = None if "environment" in line else line["models"]["commit"] if "models" in line else last
        return last

    def append_models(self, rates: dict[str, Record]) -> None:
        """Append the rates that the models of this version give for results, by their digests."""
        self._cut_off_unfinished()
        line = {"models": {"commit": commit(), "code": code_version(), "rates": rates}}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def append(self, point: Point, result: Record, seconds: float) -> None:
        """Append one result to the file and flush it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines: list[Record] = []
        if self._environment is None:
            environment = self._describe()
            self._environment = digest(environment)
            self._cut_off_unfinished()
            lines.append({"environment": environment})
        lines.append(
            {"digest": point.digest(), "point": point.as_dict(), "result": result, "seconds": round(seconds, 2)}
        )
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            file.flush()

    def _cut_off_unfinished(self) -> None:
        """Remove a last line that an interrupted run left incomplete; it would corrupt the next one."""
        if not self.path.exists():
            return
        with open(self.path, "rb+") as file:
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)

    def _describe(self) -> Record:
        return {
            "code": code_version(),
            "commit": commit(),
            "device": self.device,
            "scale": self.scale,
            "constants": dataclasses.asdict(constants_of(self.device, self.data)),
            "machine": describe_machine(),
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def _lines(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with open(self.path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                try:
                    yield json.loads(text)
                except ValueError:
                    if text.endswith("\n"):
                        raise ResultsError(
                            f"line {number} of {self.path} is not JSON; remove it, and its point is measured again"
                        ) from None
                    return  # an incomplete last line: the point was not measured
