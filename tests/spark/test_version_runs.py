"""Which older PySpark is tested, what is left out, and what is recorded."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from packaging.specifiers import SpecifierSet

from semistream.spark.supported import NEWEST, OLDEST
from spark import version_runs
from spark.version_runs import (
    OLDER,
    TURNS,
    LeftOut,
    counted,
    environment,
    listed_tests,
    main,
    of_day,
    part_of_day,
    record,
)

ROOT = Path(__file__).parents[2]


def test_every_version_that_may_be_installed_has_its_turn() -> None:
    days = [datetime.date(2026, 12, 30) + datetime.timedelta(number) for number in range(len(OLDER))]
    assert {of_day(day) for day in days} == set(OLDER)
    minors = [tuple(map(int, version.split(".")[:2])) for version in OLDER]
    assert minors == [(4, minor) for minor in range(OLDEST[1], NEWEST[1])]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (allowed,) = [line.removeprefix("pyspark") for line in extras["spark"] if line.startswith("pyspark")]
    assert all(version in SpecifierSet(allowed) for version in OLDER)
    assert f"{NEWEST[0]}.{NEWEST[1] + 1}" not in SpecifierSet(allowed)


@pytest.mark.slow
def test_pytest_chooses_each_listed_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the arguments of a run: none is missing, none is left out by its marks, and each name means one case."""
    arguments: list[str] = []

    def note(python: Path, given: list[str], seconds: float, listed: Sequence[str]) -> dict[str, int]:
        assert listed == listed_tests()
        arguments.extend(given)
        return {}

    monkeypatch.setattr(version_runs, "counted", note)
    version_runs.tested("4.0.5", Path(sys.executable), 60, listed_tests())
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300).stdout
    assert sorted(line for line in said.splitlines() if "::" in line) == sorted(listed_tests()), said


def test_all_listed_tests_have_their_turn_with_each_version() -> None:
    days = [datetime.date(2026, 12, 30) + datetime.timedelta(number) for number in range(len(OLDER) * TURNS)]
    ran = [(of_day(day), name) for day in days for name in part_of_day(day)]
    assert sorted(ran) == sorted((version, name) for version in OLDER for name in listed_tests())
    assert len(set(ran)) == len(ran)


def test_the_installed_version_needs_no_other_environment() -> None:
    assert environment(installed_version("pyspark"), 0) == Path(sys.executable)


def test_tests_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_one(): pass\ndef test_two(): pytest.skip('no')\ndef test_three(): assert 0\n"
    )
    python, options = Path(sys.executable), ["-p", "no:xdist", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    found = counted(python, [*options, str(tmp_path)], 60)
    assert found | {"seconds": 0} == {"passed": 1, "skipped": 1, "failed": 1, "seconds": 0}
    with pytest.raises(LeftOut, match="took more than 0 s"):
        counted(python, [*options, str(tmp_path)], 0)


def test_a_listed_test_that_does_not_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_one(): pass\n@pytest.mark.odd\ndef test_two(): pass\n"
        "@pytest.mark.parametrize('a', [{'b': 1}], ids=str)\ndef test_three(a): pytest.skip('no')\n"
    )
    monkeypatch.setattr(version_runs, "ROOT", tmp_path)
    names = [f"test_some.py::{name}" for name in ("test_one", "test_two", "test_three[{'b': 1}]")]
    options = ["-p", "no:xdist", "-c", "/dev/null", "--rootdir", str(tmp_path), "-m", "not odd"]
    found = counted(Path(sys.executable), [*options, *names], 60, names)
    assert found | {"seconds": 0} == {"passed": 1, "skipped": 1, "failed": 1, "seconds": 0}
    assert capsys.readouterr().out.endswith("nor failed:\n  test_some.py::test_two\n")


def test_a_part_of_the_tests_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["version_runs.py", "--today", "--record"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2


def test_what_cannot_be_installed_fails_only_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(version_runs, "ROOT", tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///nowhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for options, code in (["4.0.5"], 1), (["--today"], 0), (["--until", "-1"], 1):
        monkeypatch.setattr(sys, "argv", ["version_runs.py", *options])
        assert main() == code
        said = capsys.readouterr().out
        assert "is left out: " + ("no time is left" if code and "--until" in options else "it could not be") in said


def test_a_new_record_replaces_that_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_runs, "RESULTS", tmp_path / "versions.json")

    def run(pyspark: str, python: str) -> dict[str, Any]:
        return {"pyspark": pyspark, "python": python}

    for versions in [("4.3.0", "3.11.7"), ("4.0.4", "3.11.7"), ("4.3.0", "3.9.1"), ("4.0.5", "3.11.8")]:
        record(run(*versions))
    assert json.loads((tmp_path / "versions.json").read_text()) == {
        "runs": [run("4.0.5", "3.11.8"), run("4.3.0", "3.9.1"), run("4.3.0", "3.11.7")]
    }
