"""Bounds checking: a kernel that leaves its arrays raises, whichever way it writes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numba import njit

from semistream.core.compiled import copy_bytes, frozen, inner_kernel, kernel
from semistream.core.kernels import first_use


@kernel
def copied(target, to, source, begin, length):
    copy_bytes(target, to, source, begin, length)
    return length


@inner_kernel
def _put(array, at, value):
    array[at] = value


@kernel
def put(array, at, value):
    _put(array, at, value)
    return value


def test_bytes_are_copied():
    target, source = np.zeros(10, np.uint8), np.arange(10, dtype=np.uint8)
    copied(target, 7, frozen(source), 1, 3)
    copied(target, 10, frozen(source), 10, 0)  # nothing, at the very end
    assert target.tolist() == [0] * 7 + [1, 2, 3]


CASES = [(8, 0, 3), (0, 8, 3), (-1, 0, 3), (0, -1, 3), (0, 0, -1), (11, 0, 0), (0, 0, 1 << 62)]

SCRIPT = """
import numpy as np, sys
sys.path[:0] = {path!r}
from test_compiled import CASES, copied, put
room = np.zeros(64, np.uint8)
for to, begin, length in CASES:
    try:
        copied(room[16:26], to, np.zeros(10, np.uint8), begin, length)
    except IndexError as error:
        assert "copy_bytes" in str(error), error
    else:
        raise SystemExit(f"{{to, begin, length}} was copied")
try:
    put(np.zeros(4, np.int64), 4, 1)
except IndexError:
    print("all refused")
"""


def test_bounds_are_checked_where_numba_is_told_to(tmp_path):
    """In a process and a cache of its own; kernels that count no references must be able to raise too."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    path = [os.path.dirname(__file__), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(path=path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "all refused", done.stdout + done.stderr


@pytest.mark.skipif(os.environ.get("NUMBA_BOUNDSCHECK") != "1", reason="only where bounds are checked")
def test_this_process_checks_bounds():
    with pytest.raises(IndexError, match="out of bounds"):
        put(np.zeros(4, np.int64), 4, 1)


def test_compiling_is_told_once_and_only_if_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_use, "compiling", [lambda: print("compiling")])

    @njit  # not kept on disk: what is kept is not compiled again
    def one_more(value: float) -> float:
        return value + 1

    monkeypatch.setattr(first_use, "PATIENCE", 1000.0)
    assert one_more(True) == 2
    assert capsys.readouterr().out == "", "a kernel or two are not worth a word"
    monkeypatch.setattr(first_use, "PATIENCE", 0.0)
    assert (one_more(1), one_more(2.5)) == (2, 3.5)
    assert capsys.readouterr().out == "compiling\n"


def test_compiling_is_told_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(first_use, "compiling", [told.set])
    monkeypatch.setattr(first_use, "PATIENCE", 0.05)
    watch = first_use.Compiling()
    watch.begin()
    watch.begin()
    watch.end()
    assert told.wait(30), "the outer kernel is still being compiled"
    watch.end()
