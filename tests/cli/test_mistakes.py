"""What a person gets wrong at the terminal: one message that says what to do, and no words of Python's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream
from semistream.cli import main
from semistream.cli.console import print_error

PYTHON = re.compile(r"Traceback|Errno|\b(?:None|True|False|self)\b|\w=(?:True|None)|semistream\.\w+\(|\bpa\.|__\w+__")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as a new user has it: a table of products, some sales, and a relation."""
    monkeypatch.chdir(tmp_path)
    Path("products.csv").write_text("id,name,price\n1,fig,$1.20\n2,kiwi,$0.60\n2,kiwi,$0.70\n,none,$1.00\n")
    Path("empty.csv").write_text("")
    Path("header.csv").write_text("id,name\n")
    Path("ragged.csv").write_text("id,name\n1,fig\n2,kiwi,7\n")
    Path("late.csv").write_text("id,name\n1,fig\ntwo,kiwi\n")
    Path("latin.csv").write_bytes("id,name\n1,Käse\n".encode("latin-1"))
    Path("parted.csv").write_text("id;name\n1;fig\n")
    Path("words.txt").write_text("hello")
    Path("no.parquet").write_text("hello")
    Path("nothing_in_it").mkdir()
    pq.write_table(pa.table({"sale": [1, 2], "product": [1, 2]}), "sales.parquet")
    page = Path("sales.parquet").read_bytes()
    Path("damaged.parquet").write_bytes(page[:4] + b"\xff" * 26 + page[30:])
    Path("cut.parquet").write_bytes(page[:60])
    semistream.Relation.build(pa.table({"id": [1, 2], "name": ["fig", "kiwi"]}), "products", key="id").close()
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str) -> str:
    """Return what a command line that is wrong says, as one line."""
    monkeypatch.setattr(sys, "argv", ["semistream", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    found = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert ended.value.code == 2, found
    assert PYTHON.search(found) is None, found
    return found


MISTAKES = {
    "build products.csv r --key nam": "the relation; its columns are: id, name, price; did you mean 'name'?",
    "build products.csv r --key id --unique": "some of its values have several rows, such as 2",
    "build product.csv r --key id": "there is no file product.csv",
    "build empty.csv r --key id": "empty.csv: it is empty; the first line of a CSV file names its columns",
    "build ragged.csv r --key id": "Row #3: Expected 2 columns, got 3: 2,kiwi,7; correct that line",
    "build late.csv r --key id --type id=int64": "invalid value 'two'; correct the value, or read the column as text",
    "build latin.csv r --key id": "column 'name' is not in UTF-8; convert the file",
    "vacuum products --older-than -1": "--older-than must be at least 0, not -1",
    "vacuum products --older-than 0 --idle-days nan": "--idle-days must be at least 0, not nan",
    "vacuum products --older-than 0 --keep 7": "there is no version 7 to keep; available: 1. Nothing was removed",
    "plan --relation-rows 0 --rate 1 --memory 5%": "--relation-rows must be at least 1, not 0",
    "plan --relation-rows 1M --rate 1 --memory 5% --rows-per-key nan": "--rows-per-key must be from 1 to the 1000000",
    "plan --relation-rows 1M --rate 1 --memory 5% --row-bytes 9000": "page of 8,192; give a larger --page-size",
    "plan --relation-rows 1M --rate 1 --memory 26300B": "memory of 26,300 B is too small for every algorithm",
    "build damaged.parquet r --key sale": "cannot read damaged.parquet: Couldn't deserialize thrift: don't know what "
    "type; write the file again, or leave it out",
    "upsert cut.parquet products": "bytes not found in footer. Either the file is corrupted or this is not a parquet "
    "file; write the file again, or leave it out",
    "build words.txt r --key id": "is not a Parquet, CSV or Arrow file, by its first bytes and its name; convert it",
    "build no.parquet r --key id": "is not a Parquet, CSV or Arrow file, by its first bytes and its name; convert it",
    "build nothing_in_it r --key id": "is a directory without a Parquet, CSV or Arrow file; name the files",
    "build products.csv products --key id": "or --overwrite",
    "build products.csv words.txt/r --key id": "words.txt/r: not a directory; give another path",
    "build products.csv r": "Missing option '--key'",
    "build products.csv r --key id --derive price": "NAME=SQL",
    "build products.csv r --key id --type id=int64 --type id=string": "--type names 'id' twice; give it once",
    "build products.csv r --key id --derive price=1 --derive price=2": "--derive names 'price' twice; give it once",
    "build products.csv r --key id --shard 2": "No such option: --shard",
    "biuld products.csv r": "No such command 'biuld'",
    "head nothing_in_it": "is a directory without a manifest, not a relation; build one with semistream build",
    "head product": "there is no relation at product",
    "head words.txt": "is a file; a relation is a directory made by semistream build",
    "head products --version 7": "has no version 7; the newest is 1: open that, or leave the version out",
    "query products SELEKT": "the relation is called r",
    "inspect products --version one": "Invalid value for '--version'",
    "tune products": "Give --memory, such as 64MB or 5%",
    "tune products --memory 5": "memory of 5 B is too small for every algorithm",
    "tune products --memory much": "cannot read 'much' as an amount of memory; write '64MB', '1.5GiB' or '5%'",
    "tune products --memory 64MB --sample sales.parquet": "name its key with --on",
    "tune products --memory 64MB --sample sale.parquet": "there is no file sale.parquet",
    "tune products --memory 64MB --algorithm hybridjon": "Did you mean 'hybridjoin'?",
    "init sales.parquet products --out words.txt": "exists already; give another path with --out, or remove it",
    "init sale.parquet products": "there is nothing at sale.parquet",
    "init sales.parquet nothing_in_it": "not a relation; build one with semistream build",
    "upsert sales.parquet products": "sales.parquet has no column 'id', which is needed; it has sale, product",
    "build products.csv r --key id,name": "for a key of several columns, give each by itself",
    "build products.csv r --key id --page-size 3": "--page-size must be a multiple of 512",
    "build parted.csv r --key id": "its values seem to be separated by ';'. Separate them by commas, or by tabs",
    "vacuum nothing_in_it": "is a directory without a manifest, not a relation; build one with semistream build",
    "history product": "there is no relation at product",
    "plan --relation-rows many --rate 1 --memory 5%": "cannot read 'many' as a number; write 50000, 50k",
    "demo --rate 500": "give --live too",
    "run words.txt": "not TOML",
    "run pipelin.toml": "semistream init writes one to start from",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_and_what_to_do(
    line: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if line.startswith(("init", "run")):
        pytest.importorskip("pyspark")
    if line.startswith("query"):
        pytest.importorskip("duckdb")
    assert MISTAKES[line] in told(capsys, monkeypatch, line)
    assert not (place / "r").exists(), "nothing half-built is left"


def test_what_the_system_refuses_has_a_remedy(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "products")

    monkeypatch.setattr(semistream.Relation, "open", refused)
    found = told(capsys, monkeypatch, "head products")
    assert found == "error: products: permission denied; give another path, or grant access to it"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", 7), "Permission denied; give another path, or grant access to it"),
        (OSError(18, "Invalid cross-device link", "a", None, "b"), "a to b: invalid cross-device link"),
        (OSError(2, "No such file or directory", b"a"), "a: no such file or directory; check the path"),
    ],
)
def test_paths_of_the_systems_errors(error: OSError, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_error(error)
    assert capsys.readouterr().err.strip() == f"error: {said}"


def test_a_fault_of_the_program_is_no_traceback_either(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(semistream.Relation, "open", broken)
    monkeypatch.setattr(sys, "argv", ["semistream", "head", "products"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "a bug in semistream: KeyError" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["semistream", "--debug", "head", "products"])
    with pytest.raises(KeyError):
        main()
