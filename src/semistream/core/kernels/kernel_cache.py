"""Cache of compiled kernels on disk: each kernel is compiled once per environment.

Numba stores a function's machine code in a directory, and identifies it by the text of the function's file.
`KernelCache` adds four things:

- One process at a time compiles the functions of a file; others that need them wait, and then load the result. Without
  this, two Spark workers compiled everything twice, and could overwrite each other's index.
- Code is stale if a kernel or constant of *another* file that it was compiled with has changed, or if bounds checking
  was switched on or off.
- If the package's directory cannot be written, code is stored in the user's cache directory, or else in the user's own
  directory below the temporary files. All environments with the same sources share it.
- A cache that cannot be read or written only costs time; joins still run.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
import stat
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher

from semistream.core.kernels.first_use import PATIENCE, tell_compiling

__all__ = ["KernelCache", "are_kept", "compiling_lock"]

_PACKAGE = Path(__file__).resolve().parents[2]
_LONGEST_WAIT = 120.0  # seconds; a process that was suspended while compiling must not block all others
_CONSTANTS = (int, float, str, bytes, tuple, np.generic)
_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)


def _locked(path: str) -> int | None:
    """Lock a file, wait for that as long as is reasonable, and return its descriptor; None if it cannot be opened."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:  # in an archive, or entered interactively
        return None
    began = time.monotonic()
    while (waited := time.monotonic() - began) < _LONGEST_WAIT:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if waited > PATIENCE:
                tell_compiling()
            time.sleep(0.02)
        except OSError:  # a file system without locks
            break
    return file


class _CompilingLock:
    """Lock for the one process of an environment that compiles functions of a file. It locks the source file itself.

    Numba compiles one function at a time in a process, including the functions that it calls. Only the outermost
    function is locked: a process never waits for a second lock, so two processes cannot wait for each other. Functions
    of different files are compiled at the same time.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._file: int | None = None

    def enter(self, source: str) -> bool:
        """Wait for the lock of a file; return whether another process may have compiled the function meanwhile."""
        self._depth += 1
        if self._depth > 1:
            return False
        self._file = _locked(source)
        return self._file is not None

    def leave(self) -> None:
        """Let the next process compile."""
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._file is not None:
            os.close(self._file)
            self._file = None


compiling_lock = _CompilingLock()


def are_kept(module: types.ModuleType) -> bool:
    """Return whether the kernels of a module were compiled in this environment before, for some types."""
    kernels = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    caches = [getattr(one, "_cache", None) for one in kernels]
    return all(isinstance(cache, KernelCache) and cache.is_there for cache in caches)


class _UsersOwnLocator:
    """A directory of this user, for functions of packages whose directory cannot be written."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._line = function.__code__.co_firstlineno
        self._folder = folder

    @classmethod
    def from_function(cls, function: Any, file: str) -> _UsersOwnLocator | None:
        place = Path(file).resolve()
        if not place.is_file():
            return None
        if place.is_relative_to(_PACKAGE):
            part = f"{_sources()}/{'.'.join(place.relative_to(_PACKAGE).parent.parts)}"
        else:
            part = hashlib.sha256(str(place).encode()).hexdigest()[:16]
        version = f"numba{numba.__version__}-py{sys.version_info[0]}{sys.version_info[1]}"
        for root in _roots():
            found = cls(function, root / version / part)
            try:
                _make_own(root)
                found.ensure_cache_path()
            except OSError:
                continue
            return found
        return None

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> Any:
        return None  # `KernelCache` has its own

    def get_disambiguator(self) -> str:
        return str(self._line)


def _roots() -> Iterator[Path]:
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "semistream-kernels"
    yield Path(tempfile.gettempdir()) / f"semistream-kernels-{os.getuid()}"


def _make_own(folder: Path) -> None:
    """Create a directory that only this user can write, because its content will be executed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by other users")


@functools.cache
def _sources() -> str:
    """Return a digest of all sources of the package, independent of their location."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class _KernelCacheImpl(CompileResultCacheImpl):
    # Numba's first two are the directory in NUMBA_CACHE_DIR, and the one next to the source.
    _locator_classes = [  # noqa: RUF012 - Numba's
        *CompileResultCacheImpl._locator_classes[:2],
        _UsersOwnLocator,
        *CompileResultCacheImpl._locator_classes[2:],
    ]


class KernelCache(FunctionCache):
    """Machine code of one function, for each signature."""

    _impl_class = _KernelCacheImpl
    _stamped = False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return compiled code, or None. Then the caller compiles, and holds `compiling_lock` until it has saved."""
        found = self._loaded(sig, target_context)
        if found is None and compiling_lock.enter(self._py_func.__code__.co_filename):
            found = self._loaded(sig, target_context)
            if found is not None:
                compiling_lock.leave()
        return found

    @property
    def is_there(self) -> bool:
        """Whether any code is stored."""
        return os.path.exists(self._cache_file._index_path)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code. One process at a time, because two could give the same file name to different code.

        This lock is held for a moment only, and nothing else is waited for meanwhile.
        """
        saving = _locked(__file__)
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError:
            pass  # the code is usable now, but the next process must compile again
        finally:
            if saving is not None:
                os.close(saving)
            compiling_lock.leave()

    def _loaded(self, sig: Any, target_context: Any) -> Any:
        if not self._stamped:  # not before all kernels that this one calls are defined
            self._cache_file._source_stamp = (bool(config.BOUNDSCHECK), _digest(self._py_func, set()))  # type: ignore[attr-defined]
            self._stamped = True
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except _UNREADABLE:
            return None


def _digest(function: Any, seen: set[Any]) -> str:
    """Return a digest of a function's file, and of the kernels and constants that the function uses."""
    seen.add(function)
    digest = hashlib.sha256(_file_digest(function.__code__.co_filename))
    for name, value in _used(function):
        if isinstance(value, Dispatcher):
            if value.py_func not in seen:
                digest.update(f"{name}={_digest(value.py_func, seen)};".encode())
        elif isinstance(value, _CONSTANTS):
            digest.update(f"{name}={value!r};".encode())
    return digest.hexdigest()


def _used(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function uses, and the attributes of modules that it uses."""
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))
        else:
            yield name, value


@functools.cache
def _file_digest(path: str) -> bytes:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:  # in an archive, or entered interactively
        return path.encode()
