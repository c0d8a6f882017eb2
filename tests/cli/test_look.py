"""A look into a relation, a key asked to be unique, and messages in the command line's words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import semistream
from semistream.cli import app
from semistream.cli.app import main
from semistream.core.errors import MissingExtraError, RelationBuildError

PRODUCTS = pa.table({"id": range(50), "name": ["[b]fig", None, *(f"p{n}" for n in range(2, 50))]})


@pytest.fixture
def products(tmp_path: Path) -> Path:
    semistream.Relation.build(PRODUCTS, tmp_path / "products", key="id", page_size=512).close()
    return tmp_path / "products"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


def test_head(products: Path) -> None:
    shown = run("head", products, "-n", 3).stdout
    assert [line.split() for line in shown.splitlines() if "│" in line or "┃" in line] == [
        ["id", "┃", "name"],
        ["0", "│", "[b]fig"],
        ["1", "│", "NULL"],
        ["2", "│", "p2"],
    ]
    assert "3 of 50 rows" in shown
    semistream.delete(products, pa.array([0]))
    assert "[b]fig" not in run("head", products).stdout
    assert "[b]fig" in run("head", products, "--version", 1).stdout


def test_any_number_of_rows(products: Path) -> None:
    for asked in ("head", products), ("query", products, "SELECT * FROM r"):
        assert "p49" in run(*asked, "--rows", 10**30).output


def test_query(products: Path) -> None:
    pytest.importorskip("duckdb")
    assert "1225" in run("query", products, "SELECT sum(id) AS total FROM r").stdout
    assert "49" in run("query", products, "SELECT count(*) FROM r JOIN r AS s USING (id, name)").stdout
    shown = run("query", products, "SELECT * FROM r ORDER BY id DESC", "--rows", 2).stdout
    assert "p48" in shown
    assert "p47" not in shown
    assert "the first 2 rows" in shown
    wrong = run("query", products, "SELECT nome FROM r").exception
    assert isinstance(wrong, ValueError)
    assert "the relation is called r: id, name" in str(wrong)
    assert not isinstance(wrong, MissingExtraError)


def test_a_key_asked_to_be_unique(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,name\n1,a\n2,b\n2,c\n")
    outcome = run("build", tmp_path / "t.csv", tmp_path / "r", "--key", "id", "--unique")
    assert isinstance(outcome.exception, RelationBuildError)
    assert "id must be unique" in str(outcome.exception)
    assert "several rows, such as 2; nothing was built" in str(outcome.exception)
    assert not (tmp_path / "r").exists(), "nothing is left"
    assert run("build", tmp_path / "t.csv", tmp_path / "r", "--key", "id", "--key", "name", "--unique").exit_code == 0


def test_values_that_python_has_none_for(tmp_path: Path) -> None:
    """Bytes that are no text, and years beyond Python's: shown, and named in messages, like any other."""
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(b"\xff\xfe" * 2)]
    )
    far = pa.array([1 << 62] * 2, pa.timestamp("us"))
    table = pa.table({"id": broken, "at": far, "lists": pa.array([[1], None]), "raw": [b"\xff", b"\x1b"]})
    for key, told in (("id", "\ufffd\ufffd"), ("at", "out of range")):
        with pytest.raises(RelationBuildError, match=f"such as .*{told}.*; nothing was built"):
            semistream.Relation.build(table, tmp_path / "r", key, unique=True)
    semistream.Relation.build(table, tmp_path / "r", "id").close()
    shown = run("head", tmp_path / "r")
    assert shown.exit_code == 0, shown.exception
    for text in ("\ufffd\ufffd", "out of range", "[1]", "1b"):
        assert text in shown.stdout
    semistream.Relation.build(pa.table({"id": ["\x1b[2J"]}), tmp_path / "s", "id").close()
    assert "\\x1b[2J" in run("head", tmp_path / "s").stdout, "no command for the terminal"


def test_errors_speak_the_command_lines_language(
    products: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("id,name\n1,a\n")
    for arguments, words in (
        (["build", tmp_path / "t.csv", products, "--key", "id"], "--overwrite"),
        (["head", tmp_path / "nothing"], "semistream build"),
    ):
        monkeypatch.setattr("sys.argv", ["semistream", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code == 2
        assert words in told
        assert "overwrite=True" not in told
        assert "Relation.build" not in told
