"""``--derive``: columns worked out while a relation is built or updated."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import semistream
from semistream.cli import app
from semistream.cli.relations.csv_files import InputError

pytest.importorskip("duckdb")

PRICE = "price=replace(price, '$', '')::DECIMAL(8, 2)"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("id,price,net,at\n1,$4.50,4,2026-01-02\n2,,1,\n3,$12.00,10,2026-01-03\n")
    return tmp_path


def test_a_sign_is_stripped_and_a_column_added(place: Path) -> None:
    outcome = run(
        "build", place / "a.csv", place / "r", "--key", "id", "--type", "id=int32", "--derive", PRICE,
        "--derive", "tax=replace(price, '$', '')::DOUBLE - net", "-c", "id", "-c", "price", "-c", "tax",
    )  # fmt: skip
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    with semistream.Relation.open(place / "r") as relation:
        assert str(relation.schema.field("id").type) == "int32", "what is not worked out keeps its type"
        assert relation.to_table().to_pydict() == {
            "id": [1, 2, 3],
            "price": [Decimal("4.50"), None, Decimal("12.00")],
            "tax": [0.5, None, 2.0],
        }
    (place / "b.csv").write_text("id,price,net,at\n2,$9.99,9,\n")
    refused = run("upsert", place / "b.csv", place / "r")
    assert isinstance(refused.exception, InputError)
    outcome = run("upsert", place / "b.csv", place / "r", "--derive", PRICE, "--derive", "tax=0.5")
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    with semistream.Relation.open(place / "r") as relation:
        assert relation.to_table()["price"].to_pylist()[1] == Decimal("9.99")


@pytest.mark.parametrize(
    ("derive", "words"),
    [
        ("price", "as NAME=SQL; write it like"),
        ("price= ", "--derive gives 'price' no SQL"),
        ("price=prize * 2", '"prize" not found in FROM clause'),
        ("price=price::DOUBLE", "Could not convert string '$4.50' to DOUBLE"),
        ("price=sum(net)", "the columns are id, price, net, at"),
    ],
)
def test_mistakes_are_told_and_nothing_is_made(place: Path, derive: str, words: str) -> None:
    outcome = run("build", place / "a.csv", place / "r", "--key", "id", "--derive", derive)
    assert isinstance(outcome.exception, InputError)
    assert words in str(outcome.exception)
    assert not (place / "r").exists()


def test_what_is_wrong_with_the_file_is_still_told(place: Path) -> None:
    (place / "a.csv").write_text("id,price\n1,$4.50\n2,$1,9\n")
    outcome = run("build", place / "a.csv", place / "r", "--key", "id", "--derive", PRICE)
    assert isinstance(outcome.exception, InputError)
    assert "Row #3: Expected 2 columns, got 3" in str(outcome.exception)
