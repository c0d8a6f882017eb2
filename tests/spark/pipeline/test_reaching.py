"""What a pipeline names outside of its file is tried before Spark starts, which this test never does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from typer.testing import CliRunner

from semistream.cli import app
from semistream.spark.monitoring.prometheus import PortTakenError
from semistream.spark.pipeline import PipelineError, load
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.reaching import check_reachable
from semistream.spark.pipeline.reading import read_plan


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound, so that nobody else takes it, and that does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def problems(folder: Path, text: str) -> dict[int, str]:
    document = Document(folder / "p.toml", text, {})
    plan = read_plan(document)
    assert document.problems == []
    check_reachable(plan, document)
    return {problem.line: problem.message for problem in document.problems}


def test_directories_that_are_files_and_streams_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    text = """\
checkpoint = "taken/check"
[source]
format = "parquet"
path = "sales"
[sink]
format = "parquet"
path = "taken"
[statistics]
file = "taken/statistics.jsonl"
"""
    found = problems(tmp_path, text)
    assert sorted(found) == [1, 4, 7, 9]
    assert f"{tmp_path}/taken is a file; give another path, or remove it" in found[1]
    assert f"there is nothing at {tmp_path}/sales; create the directory" in found[4]
    (tmp_path / "sales").mkdir()
    (tmp_path / "taken").unlink()
    assert problems(tmp_path, text) == {}
    for pattern in ("sa*", "s?les", "{sales,more}"):
        assert problems(tmp_path, text.replace('"sales"', f'"{pattern}"')) == {}
    assert list(problems(tmp_path, text.replace('"sales"', '"x*"'))) == [4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sales"], "nothing is made"


def test_brokers_and_databases_that_do_not_answer(tmp_path: Path, closed_port: int) -> None:
    pytest.importorskip("pymysql")
    text = f"""\
checkpoint = "check"
[source]
format = "kafka"
topic = "sales"
schema = "id long"
servers = "127.0.0.1:{closed_port},nowhere"
[sink]
format = "mariadb"
url = "mariadb://etl@127.0.0.1:{closed_port}/shop"
table = "facts"
"""
    found = problems(tmp_path, text)
    assert sorted(found) == [6, 9]
    assert "no broker answers" in found[6]
    assert "Connection refused" in found[6]
    assert "nowhere is not HOST:PORT" in found[6]
    assert "cannot connect to" in found[9]
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(PipelineError, match="2 problems"):
        load(tmp_path / "p.toml")
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = text.replace(f"{closed_port},nowhere", f"{server.getsockname()[1]}")
        assert list(problems(tmp_path, listening)) == [9]


def test_ports_that_are_taken(tmp_path: Path) -> None:
    """Told before Spark starts: of statistics with the line, of the live page at once."""
    pytest.importorskip("starlette")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lines = ('checkpoint = "check"', "[source]", 'format = "rate"', "[sink]", 'format = "console"', "[statistics]")
        text = "\n".join([*lines, f"port = {port}"])
        assert f"port {port} of the loopback address cannot be used for statistics" in problems(tmp_path, text)[7]
        outcome = CliRunner().invoke(app, ["run", str(tmp_path / "p.toml"), "--dashboard", "--port", str(port)])
        assert isinstance(outcome.exception, PortTakenError)
        assert "for the page (--port): Address already in use; give another, or 0 for any" in str(outcome.exception)
    assert problems(tmp_path, text) == {}


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "is a directory"), (tmp_path / "p.toml", "is not there")):
        with pytest.raises(PipelineError, match=f"it {words}; a pipeline is a TOML file, and semistream init"):
            load(path)
