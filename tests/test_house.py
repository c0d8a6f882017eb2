"""The house stays a house: no circles of files, no file or folder too large, no name twice (CONTRIBUTING.md, Style)."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
import grimp
import pytest
import typer.main

import semistream
import semistream_lab
from semistream.cli import app
from semistream_lab.cli import bench, experiments

ROOTS = [Path(str(package.__file__)).parent for package in (semistream, semistream_lab)]
MOST_LINES = 350
MOST_FILES = 15


def files() -> dict[Path, Path]:
    """Return the sources of both packages, with where they are inside of their package."""
    return {path: path.relative_to(root) for root in ROOTS for path in sorted(root.rglob("*.py"))}


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or by way of others."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            more = imports.get(todo.pop(), set()) - found
            found |= more
            todo += more
        return found

    reach = {module: reached(module) for module in imports}
    rings = {frozenset(other for other in reach[m] if m in reach.get(other, ())) for m in reach if m in reach[m]}
    return sorted(sorted(ring) for ring in rings)


def names_used_twice(paths: Iterable[Path], commands: set[str]) -> dict[str, list[Path]]:
    """Return names of several files, but for those that a convention repeats.

    A cost model bears the name of its join or family, and a command that of the command.
    """
    named = defaultdict(list)
    for path in paths:
        if path.stem != "__init__":
            named[path.stem].append(path)
    return {name: found for name, found in named.items() if _too_many(name, found, commands)}


def _too_many(name: str, found: list[Path], commands: set[str]) -> bool:
    rooms = [path.parts[0] for path in found]
    if name in commands and rooms.count("cli") == 1:
        rooms.remove("cli")
    if sorted(rooms) == ["costs", "joins"]:
        rooms.remove("costs")
    return len(rooms) > 1


def commands_of(command: click.Command) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        yield name.replace("-", "_")
        yield from commands_of(below)


def test_no_circle_of_files() -> None:
    graph = grimp.build_graph("semistream", "semistream_lab", exclude_type_checking_imports=False, cache_dir=None)
    assert circles({module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}) == []


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f"}, "f": {"e"}, "g": {"a"}}
    assert circles(imports) == [["a", "b", "c"], ["e", "f"]]


def test_files_are_short() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in files()}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_folders_are_small() -> None:
    held: dict[str, int] = defaultdict(int)
    for path in files():
        held[str(path.parent)] += 1
    assert {folder: count for folder, count in held.items() if count > MOST_FILES} == {}


def test_no_name_twice() -> None:
    commands = {"bench", "experiments"}
    for found in (app, bench.app, experiments.app):
        commands |= set(commands_of(typer.main.get_command(found)))
    assert {"build", "peers", "report"} <= commands
    assert names_used_twice(files().values(), commands) == {}


def test_names_twice_are_found() -> None:
    def twice(*paths: str) -> list[str]:
        return list(names_used_twice(map(Path, paths), {"plan"}))

    assert twice("joins/inlj.py", "costs/inlj.py", "costs/basis/popularity.py") == []
    assert twice("joins/inlj.py", "costs/inlj.py", "costs/basis/inlj.py") == ["inlj"]
    assert twice("joins/inlj.py", "tuner/inlj.py") == ["inlj"]
    assert twice("cli/tuning/plan.py", "spark/pipeline/plan.py", "cli/__init__.py", "costs/__init__.py") == []
    assert twice("cli/plan.py", "spark/plan.py", "tuner/plan.py") == ["plan"]
    assert twice("cli/files.py", "relation/files.py") == ["files"]


@pytest.mark.xdist_group("together")
def test_groups_of_tests_are_kept_together(request: pytest.FixtureRequest) -> None:
    """Where they are not, each test process has a Spark session and servers of its own, and nobody notices."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("there is one test process, or groups were not asked for")
    assert request.node.nodeid.endswith("@together"), "pytest-xdist tells groups in a way that this pytest ignores"


def test_tests_that_would_start_too_late_are_skipped() -> None:
    """Otherwise a run on a slow machine ends at its limit, without any result."""
    chosen = Path(__file__).parent / "structures" / "test_array_source.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--before", "1", str(chosen)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "left out: this machine is too slow" in told
    assert " passed" not in told
