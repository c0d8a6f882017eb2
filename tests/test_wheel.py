"""A wheel in a clean environment: the core without Spark, what the page needs, and extras named by errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pyarrow
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, as a release is; setuptools comes from PyPI."""
    pytest.importorskip("build")
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(place), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "Could not find a version" in done.stdout + done.stderr:
        pytest.skip("setuptools cannot be had: no package index is reached")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (found,) = place.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_what_is_not_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "semistream").rglob("*") if path.is_file()
    }
    caches = ("__pycache__", "/.")
    missing = {name for name in sources if not any(part in name for part in caches)} - names
    assert missing == set()


@pytest.mark.slow
def test_a_clean_environment_without_spark(wheel: Path, tmp_path: Path) -> None:
    """The core's own dependencies, and no other: these are lent by the environment of the tests, one by one."""
    place = tmp_path / "clean"
    venv.create(place, symlinks=True, with_pip=False)
    (site,) = (place / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    core = (
        "numpy",
        "numpy.libs",
        "pyarrow",
        "numba",
        "llvmlite",
        "typer",
        "rich",
        "click",
        "shellingham",
        "markdown_it",
    )
    more = (
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "typing_inspection",
        "mdurl",
        "pygments",
        "typing_extensions.py",
        "annotated_doc",
        "annotated_doc.py",
    )
    lender = Path(pyarrow.__file__).parents[1]
    for name in (*core, *more, *(path.name for path in lender.glob("*.dist-info"))):
        if (lender / name).exists() and not (site / name).exists():
            (site / name).symlink_to(lender / name)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        return subprocess.run(
            [str(place / "bin" / "python"), *command], capture_output=True, text=True, timeout=300, cwd=tmp_path,
            env={**clean, "SEMISTREAM_DATA": str(tmp_path / "data")}, check=False,
        )  # fmt: skip

    cli = ("-c", "from semistream.cli import main; main()")
    (tmp_path / "t.csv").write_text("id,name\n1,apple\n2,fig\n")
    built = run(*cli, "build", "t.csv", "r", "--key", "id")
    assert built.returncode == 0, built.stderr
    assert "fig" in run(*cli, "head", "r").stdout
    refused = run(*cli, "demo")
    assert refused.returncode == 2
    assert "pip install 'semistream[demo]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert run("-c", "import semistream; print(semistream.__version__)").stdout.strip() == semistream_version()


def semistream_version() -> str:
    import tomllib

    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
