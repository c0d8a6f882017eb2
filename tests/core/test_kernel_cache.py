"""Kernels on disk: compiled once for an environment, never stale, and kept where only the user can write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.core.kernels import kernel_cache

INNER = """
from semistream.core.compiled import inner_kernel
STEP = {step}
@inner_kernel
def one_more(value):
    return value + {more}
"""
OUTER = """
from semistream.core.compiled import kernel
from inner_part import STEP, one_more
@kernel
def total(count):
    found = 0
    for value in range(0, count, STEP):
        found += one_more(value)
    return found
"""
MAIN = "import sys; sys.path.insert(0, {folder!r}); from outer_part import total; print(total(10))"


def write_kernels(folder: Path, *, more: int = 1, step: int = 1) -> None:
    (folder / "inner_part.py").write_text(INNER.format(more=more, step=step))
    (folder / "outer_part.py").write_text(OUTER)


def started(folder: Path, **environment: str) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN.format(folder=str(folder))], text=True, stdout=subprocess.PIPE,
        env={**variables, "NUMBA_DEBUG_CACHE": "1", **environment},
    )  # fmt: skip


def outcome(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """Return what it printed itself, and the files of machine code that it wrote."""
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 0
    return lines[-1], [line.split("'")[1] for line in lines if "data saved to" in line]


def test_processes_that_start_together_compile_each_kernel_once(tmp_path: Path) -> None:
    write_kernels(tmp_path)
    both = [started(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kept")) for _ in range(2)]
    found = [outcome(process) for process in both]
    assert [printed for printed, _ in found] == ["55", "55"]
    assert len([name for _, saved in found for name in saved]) == 2, "the kernel and its inner kernel, by one of them"


def test_a_kernel_is_stale_when_what_it_was_compiled_with_is(tmp_path: Path) -> None:
    """Numba looks only at a kernel's own file; the code of kernels and constants of others is in it, too."""
    write_kernels(tmp_path)
    assert outcome(started(tmp_path))[0] == "55"
    assert outcome(started(tmp_path)) == ("55", [])
    write_kernels(tmp_path, more=2)
    assert outcome(started(tmp_path))[0] == "65"
    write_kernels(tmp_path, more=2, step=5)
    assert outcome(started(tmp_path))[0] == "9"


def test_kernels_that_check_bounds_are_others(tmp_path: Path) -> None:
    write_kernels(tmp_path)
    first = outcome(started(tmp_path))[1]
    assert outcome(started(tmp_path, NUMBA_BOUNDSCHECK="1")) == ("55", first), "compiled again"


def test_a_package_that_cannot_be_written_has_its_kernels_in_the_users_directory(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    write_kernels(package)
    (package / "__pycache__").touch()  # no directory can be made there, not even by root
    home = outcome(started(package, XDG_CACHE_HOME=str(tmp_path / "cache")))[1]
    assert len(home) == 2
    assert all(name.startswith(str(tmp_path / "cache" / "semistream-kernels")) for name in home)
    assert outcome(started(package, XDG_CACHE_HOME=str(tmp_path / "cache"))) == ("55", [])
    (tmp_path / "temporary").mkdir()
    homeless = {"XDG_CACHE_HOME": "/dev/null", "HOME": "/dev/null", "TMPDIR": str(tmp_path / "temporary")}
    saved = outcome(started(package, **homeless))[1]
    assert len(saved) == 2
    assert all(name.startswith(str(tmp_path / "temporary")) for name in saved)


def test_code_is_not_loaded_from_a_directory_that_others_can_write(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by other users"):
        kernel_cache._make_own(shared)
    kernel_cache._make_own(tmp_path / "own")
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(PermissionError):
        kernel_cache._make_own(tmp_path / "link")


def test_a_damaged_or_full_cache_costs_time_and_nothing_else(tmp_path: Path) -> None:
    write_kernels(tmp_path)
    for name in outcome(started(tmp_path))[1]:
        Path(name).write_bytes(b"")
    assert outcome(started(tmp_path))[0] == "55"


def test_processes_that_compile_different_signatures_do_not_mix_them_up(tmp_path: Path) -> None:
    """Numba numbers the files of a function's signatures: two processes that save together must not use one number."""
    (tmp_path / "shared_part.py").write_text(
        "from semistream.core.compiled import inner_kernel\n"
        "@inner_kernel\n"
        "def doubled(value):\n"
        "    return value + value\n"
    )
    for name in ("one", "two"):
        (tmp_path / f"outer_{name}.py").write_text(
            "from semistream.core.compiled import kernel\n"
            "from shared_part import doubled\n"
            "@kernel\n"
            "def total(values):\n"
            "    found = values[0]\n"
            "    for value in values[1:]:\n"
            "        found = found + doubled(value)\n"
            "    return found\n"
        )
    main = (
        "import sys; sys.path.insert(0, {folder!r}); import numpy as np; from outer_{name} import total; "
        "print([float(total(np.arange(4).astype(kind))) for kind in {kinds!r}])"
    )
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}

    def all_kinds(name: str, kinds: str) -> subprocess.Popen[str]:
        command = main.format(folder=str(tmp_path), name=name, kinds=kinds.split())
        return subprocess.Popen([sys.executable, "-c", command], text=True, stdout=subprocess.PIPE, env=variables)

    both = [all_kinds("one", "i8 f8 f4 u4"), all_kinds("two", "f4 i2 f8 i8")]
    assert [process.communicate()[0].strip() for process in both] == ["[12.0, 12.0, 12.0, 12.0]"] * 2
    again = [all_kinds("two", "i8 f8 f4 u4"), all_kinds("one", "f4 i2 f8 i8")]
    assert [process.communicate()[0].strip() for process in again] == ["[12.0, 12.0, 12.0, 12.0]"] * 2
