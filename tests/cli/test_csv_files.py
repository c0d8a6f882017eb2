"""CSV files read without Spark: what is NULL, what is refused, and how it is told."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

import semistream
from semistream.cli import app
from semistream.cli.relations.csv_files import InputError
from semistream.cli.relations.master import find_master
from semistream.cli.relations.table_files import InputFiles, parse_types


def table(folder: Path, text: str, *types: str, **options: tuple[str, ...]) -> pa.Table:
    (folder / "a.csv").write_bytes(text.encode())
    return InputFiles.find([folder / "a.csv"], parse_types(types), **options).reader().read_all()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_empty_fields_are_null_and_quoted_ones_are_not(tmp_path: Path) -> None:
    found = table(tmp_path, 'id,name,price\n1,,\n2,"",2.5\n,NA,NaN\n')
    assert found["id"].to_pylist() == [1, 2, None]
    assert found["name"].to_pylist() == [None, "", "NA"]
    assert str(found["price"].to_pylist()) == "[None, 2.5, nan]", "NaN is a number"
    with pytest.raises(InputError, match=r"column 'id': Row #3: .*invalid value ''"):
        table(tmp_path, 'id,name\n1,a\n"",b\n', "id=int64")
    with pytest.raises(InputError, match=r"Row #2: .*'NA'"):
        table(tmp_path, "id,name\nNA,a\n", "id=int64")
    found = table(tmp_path, 'id,name\nNA,NA\n1,"NA"\n', "id=int64", nulls=("NA",))
    assert found.to_pydict() == {"id": [None, 1], "name": [None, "NA"]}


def test_null_is_an_option_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,price\n1,NA\n2,5\n")
    outcome = run("build", tmp_path / "a.csv", tmp_path / "r", "--key", "id", "--null", "NA", "--type", "price=int64")
    assert outcome.exit_code == 0, outcome.output
    (tmp_path / "b.csv").write_text("id,price\n2,none\n")
    assert run("upsert", tmp_path / "b.csv", tmp_path / "r", "--null", "none").exit_code == 0
    with semistream.Relation.open(tmp_path / "r") as relation:
        assert relation.to_table().to_pydict() == {"id": [1, 2], "price": [None, None]}


def test_types_of_columns_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--type idd: .*has no column 'idd'; did you mean 'id'\?"):
        table(tmp_path, "id,name\n1,a\n", "idd=string")
    with pytest.raises(InputError, match="has no column 'colour'; the columns are id, name"):
        table(tmp_path, "id,name\n1,a\n", "colour=string")
    pa.parquet.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet has its own types"):
        InputFiles.find([tmp_path / "a.parquet"], parse_types(["id=string"])).reader()
    with pytest.raises(InputError, match="--type is for CSV files"):
        find_master(["sqlite:///x.db"], parse_types(["id=string"]), "t")
    # What R knows of columns that a file of keys lacks is no mistake.
    (tmp_path / "keys.csv").write_text("id\n007\n")
    known = {"id": pa.string(), "name": pa.string()}
    assert InputFiles.find([tmp_path / "keys.csv"], known=known).reader().read_all().to_pydict() == {"id": ["007"]}


def test_rows_that_do_not_fit_are_refused_with_their_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.csv: .*Row #3: Expected 2 columns, got 3: 2,b,c"):
        table(tmp_path, "id,name\n1,a\n2,b,c\n")
    with pytest.raises(InputError, match="column 'price': Row #3: "):
        table(tmp_path, "id,price\n1,1.25\n2,1.255\n", "price=decimal(8,2)")
    with pytest.raises(InputError, match=r"column 'price': Row #3: 1000000\.00 has too many digits"):
        table(tmp_path, "id,price\n1,1.25\n2,1000000\n", "price=decimal(8,2)")
    with pytest.raises(InputError, match="two columns called 'id'"):
        table(tmp_path, "id,id\n1,2\n")


def test_instants_without_a_zone_are_of_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    texts = ["2024-01-02 03:04:05", "2024-01-02T03:04:05.123456Z", "2024-01-02 03:04+02:00", "2024-01-02", ""]
    found = table(
        tmp_path, "".join(f"{text}\n" for text in ["id,at", *(f"1,{text}" for text in texts)]), "at=timestamp[us, UTC]"
    )
    noon = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert found["at"].to_pylist() == [
        noon, noon.replace(microsecond=123456), noon.replace(hour=1, second=0),
        noon.replace(hour=0, minute=0, second=0), None,
    ]  # fmt: skip
    for text in ("2024-01-02 03:04:05.1234567", "2024", "noon"):
        with pytest.raises(InputError, match=f"column 'at': Row #3: .*{text}'"):
            table(tmp_path, f"id,at\n1,2024-01-02\n1,{text}\n", "at=timestamp[us, UTC]")


def test_the_second_file_is_of_the_first_ones_types(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\nA1,\n")
    (tmp_path / "b.csv").write_text("n,id\n,007\n")
    files = InputFiles.find([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert files.reader().read_all()["id"].to_pylist() == ["A1", "007"]


def test_line_ends_within_values(tmp_path: Path) -> None:
    lines = "".join(f'{number},"one\r\ntwo, ""three"""\r\n' for number in range(50_000))  # over many blocks
    found = table(tmp_path, f"\ufeffid,name\r\n{lines}")
    assert found.schema.names == ["id", "name"]
    assert found["id"].to_pylist() == list(range(50_000))
    assert set(found["name"].to_pylist()) == {'one\ntwo, "three"'}


def test_texts_in_another_encoding_are_told_wherever_they_are(tmp_path: Path) -> None:
    late = "id,name\n" + "1,fig\n" * 300_000  # over the first block
    (tmp_path / "a.csv").write_bytes(late.encode() + "2,Käse\n".encode("latin-1"))
    told = (
        r"column 'name': Row #300002 is not in UTF-8; convert the file, for example with iconv .* --type name=binary$"
    )
    for types in ([], ["name=string"]):
        with pytest.raises(InputError, match=told) as caught:
            InputFiles.find([tmp_path / "a.csv"], parse_types(types)).reader().read_all()
        assert "name=string" not in str(caught.value), "it has that type"
    for rows in ("", "1,fig\n"):
        (tmp_path / "a.csv").write_bytes(f"id,größe\n{rows}".encode("latin-1"))
        with pytest.raises(InputError, match="the names of its columns are not in UTF-8; convert the file"):
            InputFiles.find([tmp_path / "a.csv"]).reader()
    (tmp_path / "a.csv").write_text("id,id\n")
    with pytest.raises(InputError, match="two columns called 'id'"):
        InputFiles.find([tmp_path / "a.csv"]).reader()


@pytest.mark.parametrize("value", ["9e+05", "9223372036854775808", "-9223372036854775809", "1" * 5000])
def test_an_id_that_is_no_int64_is_shown_with_its_row_and_the_type_to_give(tmp_path: Path, value: str) -> None:
    """One such value makes the key a double, which no key can be."""
    rows = [f"{number},fig" for number in [*range(800_000, 800_050), 9223372036854775807]]
    rows[29:31] = ["9223372036854775807,pear", f"{value},kiwi"]
    (tmp_path / "a.csv").write_text("product_id,name\n" + "\n".join(rows) + "\n")
    outcome = run("build", tmp_path / "a.csv", tmp_path / "r", "--key", "product_id")
    assert isinstance(outcome.exception, InputError)
    said = str(outcome.exception)
    assert f"the value '{value}' in row #32" in said
    assert said.endswith("--type product_id=string")
    assert not (tmp_path / "r").exists()
    right = run("build", tmp_path / "a.csv", tmp_path / "r", "--key", "product_id", "--type", "product_id=string")
    assert right.exit_code == 0, right.output


def test_a_key_of_whole_numbers_and_an_empty_field_is_no_double(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,price\n7,1.5\n,2.5\n 8,3\n")
    files = InputFiles.find([tmp_path / "a.csv"])
    files.check_keys(files.reader().schema, ["id"])
    with pytest.raises(InputError, match=r"the value '1\.5' in row #2"):
        files.check_keys(files.reader().schema, ["price"])
