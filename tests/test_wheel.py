"""A wheel in a clean environment: the core without Spark, extras named by errors, and the demo with its extra."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def built(source: Path, place: Path) -> Path:
    """Build a wheel from a copy of the sources, as a release is; setuptools comes from PyPI."""
    pytest.importorskip("build")
    copy = place / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (source / name).exists():
            shutil.copy(source / name, copy)
    shutil.copytree(source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(place), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "Could not find a version" in done.stdout + done.stderr:
        pytest.skip("setuptools cannot be had: no package index is reached")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def lab_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "lab", tmp_path_factory.mktemp("lab-wheel"))


def files_in(sources: Path) -> set[str]:
    found = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file()}
    return {name for name in found if not any(part in name for part in ("__pycache__", "/.", ".egg-info"))}


@pytest.mark.slow
def test_the_wheel_is_the_product_and_nothing_else(wheel: Path) -> None:
    """With what is not Python, and without experiments and benchmarks."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_in(ROOT / "src")
    assert {name.split("/")[0] for name in names} == {"semistream"}
    assert not any(name.startswith(("semistream/experiments/", "semistream/benchmarks/")) for name in names)


@pytest.mark.long
@pytest.mark.slow
def test_the_wheel_of_the_laboratory(lab_wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(lab_wheel).namelist() if ".dist-info/" not in name}
    assert names == files_in(ROOT / "lab" / "src")


class Clean:
    """An environment of its own with the wheel, installed by pip, and what its metadata asks for and nothing else.

    Dependencies are lent by the environment of the tests, one by one, so that nothing is downloaded.
    """

    def __init__(self, wheel: Path, place: Path) -> None:
        self.place = place
        venv.create(place / "venv", symlinks=True, with_pip=False)
        (self.site,) = (place / "venv" / "lib").glob("python*/site-packages")
        self.install(wheel)
        (found,) = self.site.glob("semistream-*.dist-info")
        self._own = importlib.metadata.Distribution.at(found)

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.place / "venv"), "--disable-pip-version-check"]
        install = [*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)]
        subprocess.run(install, check=True, timeout=120, env=_environment())

    def lend(self, *extras: str) -> None:
        """Add what the core, or one of these extras, needs."""
        wanted = [(self._own, frozenset(extras))]
        done: set[tuple[str, frozenset[str]]] = set()
        while wanted:
            distribution, asked = wanted.pop()
            for line in distribution.requires or ():
                need = Requirement(line)
                if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in ("", *asked)):
                    continue
                if (need.name, frozenset(need.extras)) in done:
                    continue
                done.add((need.name, frozenset(need.extras)))
                own = need.name == "semistream"
                found = self._own if own else importlib.metadata.distribution(need.name)
                wanted.append((found, frozenset(need.extras)))
                if not own:
                    self._link(found)

    def nbytes(self) -> int:
        """Return the size of everything that is installed."""
        linked = [path.rglob("*") if path.is_dir() else [path] for path in self.site.iterdir()]
        files = [file for files in linked for file in files if "__pycache__" not in file.parts and file.is_file()]
        return sum(file.stat().st_size for file in files)

    def _link(self, distribution: importlib.metadata.Distribution) -> None:
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (self.site / top).exists():
                (self.site / top).symlink_to(distribution.locate_file(top))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``semistream``, as pip has installed it, in the directory of this environment."""
        return self._run("semistream", *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its Python."""
        return self._run("python", *arguments)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.place / "venv" / "bin" / program), *arguments], capture_output=True, text=True,
            timeout=300, cwd=self.place, check=False,
            env={**_environment(), "SEMISTREAM_DATA": str(self.place / "data")},
        )  # fmt: skip


def _environment() -> dict[str, str]:
    """Without anything that would have other packages found."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "SPARK"))}


REFUSED = """
import json, sys
from semistream.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["semistream", *arguments]
    try:
        main()
    except SystemExit as ended:
        print("exit code", ended.code, file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    made = Clean(wheel, tmp_path_factory.mktemp("clean"))
    made.lend()
    return made


@pytest.mark.long
@pytest.mark.slow
def test_a_clean_environment_without_spark(clean: Clean) -> None:
    (clean.place / "t.csv").write_text("id,name\n1,apple\n2,fig\n")
    (clean.place / "p.toml").write_text("name = 'p'\n")
    (clean.place / "lake" / "_delta_log").mkdir(parents=True)
    assert clean.run("--version").stdout.strip() == f"semistream {semistream_version()}"
    built = clean.run("build", "t.csv", "r", "--key", "id")
    assert built.returncode == 0, built.stderr
    assert "fig" in clean.run("head", "r").stdout
    commands = {
        "demo": ["demo"],
        "spark": ["run", "p.toml"],
        "query": ["query", "r"],
        "store": ["inspect", "s3://bucket/products"],
        "sql": ["build", "postgresql://host/db", "s", "--table", "t", "--key", "id"],
        "delta": ["build", "lake", "s", "--key", "id"],
    }
    refused = clean.python("-c", REFUSED, json.dumps(list(commands.values())))
    assert "Traceback" not in refused.stderr
    told = refused.stderr.split("exit code 2\n")
    assert len(told) == len(commands) + 1, refused.stderr
    for extra, message in zip(commands, told, strict=False):
        assert f"pip install 'semistream[{extra}]'" in message


@pytest.mark.long
@pytest.mark.slow
def test_the_environment_is_as_small_and_quick_as_the_page_says(wheel: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    told = dict(re.findall(r"^\| (.*?) \| ([\d.]+) (?:MB|s) \|$", page, re.MULTILINE))
    assert wheel.stat().st_size < 1.1 * float(told["wheel"]) * 1e6
    began = _seconds_of_children()
    core = Clean(wheel, tmp_path)
    assert _seconds_of_children() - began < 3 * float(told["installation of the wheel, without dependencies"])
    core.lend()
    assert 0.8 * float(told["environment"]) * 1e6 < core.nbytes() < 1.1 * float(told["environment"]) * 1e6
    core.lend("spark")
    with_spark = float(told["environment with `[spark]`"]) * 1e6
    assert 0.8 * with_spark < core.nbytes() < 1.1 * with_spark
    first = "import sys, semistream; assert not {'numpy', 'numba', 'pyarrow'} & set(sys.modules)"
    for what, program in [
        ("`import semistream`", first),
        ("relations and joins", "from semistream import Relation, create"),
    ]:
        core.python("-c", program)  # compiles to byte code
        began = _seconds_of_children()
        assert core.python("-c", program).returncode == 0
        assert _seconds_of_children() - began < 3 * float(told[what])


def _seconds_of_children() -> float:
    """Return the processor time of the programs that have ended: unlike time, it depends little on other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
@pytest.mark.slow
def test_commands_of_the_laboratory_come_with_its_wheel(clean: Clean, lab_wheel: Path) -> None:
    without = clean.run("bench", "joins")
    assert without.returncode == 2
    assert "pip install semistream-lab" in without.stderr
    clean.install(lab_wheel)
    assert "--warm-up" in clean.run("bench", "joins", "--help").stdout
    assert "cmesh-3d" in clean.run("experiments", "list").stdout


@pytest.mark.long
@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(clean: Clean) -> None:
    """In a small form: the whole way, from an environment that has what the extra ``demo`` asks for and no more."""
    clean.lend("demo")
    # the join whose kernels take least to compile, which a new environment has to
    small = ("--rows", "20000", "--sales", "6000", "--batches", "2", "--memory", "25%", "--algorithm", "inlj")
    done = clean.run("demo", *small)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for words in ("the warehouse equals the result of Spark's own join, row for row", "ratio", "Revenue by category"):
        assert words in " ".join(done.stdout.split())
    assert "Live page while it runs: http://127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr


def semistream_version() -> str:
    import tomllib

    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
