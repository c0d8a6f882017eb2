"""The command line outside of Spark: version, algorithms, build, inspect, and what happens to errors."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

import semistream
from forced_filters import filters_built
from semistream.cli import app, main
from semistream.cli.relations.table_files import InputError, InputFiles, parse_types
from semistream.relation.storage.checksum import file_seed, seal

PRODUCTS = pa.table({
    "id": pa.array([5, 3, 1, 4, 2], pa.int64()),
    "name": ["pear", "fig", "apple", "kiwi", "plum"],
})  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run as the installed program does; return the exit code."""
    monkeypatch.setattr(sys, "argv", ["semistream", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def stored(path: Path) -> dict[str, list[object]]:
    with semistream.Relation.open(path) as relation:
        return dict(relation.to_table().to_pydict())


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "products.parquet"
    pyarrow.parquet.write_table(PRODUCTS, path)
    return path


def write_csv(table: pa.Table, path: Path) -> None:
    pyarrow.csv.write_csv(table, path)


def write_csv_gz(table: pa.Table, path: Path) -> None:
    with gzip.open(path, "wb") as file:
        pyarrow.csv.write_csv(table, file)


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_file(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


WRITERS = {
    "a.parquet": pyarrow.parquet.write_table,
    "a.csv": write_csv,
    "a.csv.gz": write_csv_gz,
    "a.arrow": write_file,
    "a.arrows": write_stream,
    "a.feather": pyarrow.feather.write_feather,
}


def test_version() -> None:
    assert run("--version").stdout == f"semistream {semistream.__version__}\n"


def test_the_installed_program_runs() -> None:
    """The entry point of the package, in a process of its own."""
    outcome = subprocess.run(
        [sys.executable, "-c", "from semistream.cli import main; main()", "--version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert outcome.stdout.strip() == f"semistream {semistream.__version__}"


def test_help_imports_neither_spark_nor_numba() -> None:
    """Waiting for a second to see the options would be too long."""
    script = (
        "import sys; sys.argv = ['semistream', '--help']\n"
        "from semistream.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'numba', 'pyarrow') if name in sys.modules], file=sys.stderr)"
    )
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert outcome.stderr.strip() == "[]"
    for command in ("demo", "build", "inspect", "algorithms", "bench"):
        assert command in outcome.stdout


def test_algorithms_are_those_of_the_registry() -> None:
    listed = json.loads(run("algorithms", "--json").stdout)["algorithms"]
    assert [row["id"] for row in listed] == semistream.algorithms()
    assert {row["id"] for row in listed if not row["bounded"]} == {"oracle"}
    table = run("algorithms").stdout
    assert all(name in table for name in semistream.algorithms())


@pytest.mark.parametrize("name", list(WRITERS))
def test_build_reads_every_format(tmp_path: Path, name: str) -> None:
    WRITERS[name](PRODUCTS, tmp_path / name)
    outcome = run("build", tmp_path / name, tmp_path / "relation", "--key", "id")
    assert outcome.exit_code == 0, outcome.output
    assert stored(tmp_path / "relation") == {
        "id": [1, 2, 3, 4, 5],
        "name": ["apple", "plum", "fig", "kiwi", "pear"],
    }


def test_build_takes_several_files_and_directories_in_order(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    pyarrow.parquet.write_table(PRODUCTS.slice(0, 2), tmp_path / "b.parquet")
    pyarrow.parquet.write_table(PRODUCTS.slice(2, 2), tmp_path / "more" / "part-0.parquet")
    write_csv(PRODUCTS.slice(4).select(["name", "id"]), tmp_path / "more" / "part-1.csv")
    (tmp_path / "more" / "_SUCCESS").touch()
    outcome = run("build", tmp_path / "b.parquet", tmp_path / "more", tmp_path / "relation", "-k", "id", "--scattered")
    assert outcome.exit_code == 0, outcome.output
    assert stored(tmp_path / "relation") == PRODUCTS.to_pydict()


def test_build_passes_its_options_on(tmp_path: Path, parquet: Path) -> None:
    options = ("--page-size", "1KiB", "--fill", "0.5", "--shards", "3", "--memory", "1MB")
    assert run("build", parquet, tmp_path / "r", "--key", "name", "--key", "id", *options).exit_code == 0
    found = json.loads(run("inspect", tmp_path / "r", "--json").stdout)
    assert (found["key"], found["page_bytes"], found["fill"]) == (["name", "id"], 1024, 0.5)
    assert len(found["shards"]) == 3
    assert not found["key_exact"]
    assert sum(shard["rows"] for shard in found["shards"]) == found["rows"] == 5


def test_build_does_not_replace_unless_told_to(tmp_path: Path, parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "relation"
    assert run("build", parquet, path, "--key", "id").exit_code == 0
    assert run_main(monkeypatch, "build", parquet, path, "--key", "id") == 2
    assert run("build", parquet, path, "--key", "id", "--overwrite").exit_code == 0
    assert json.loads(run("inspect", path, "--json").stdout)["version"] == 2


def test_csv_column_with_leading_zeros(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,price\n007,1.50\n042,2.25\n")
    types = ("--type", "id=string", "--type", "price=decimal(8,2)")
    assert run("build", tmp_path / "a.csv", tmp_path / "r", "--key", "id", *types).exit_code == 0
    found = json.loads(run("inspect", tmp_path / "r", "--json").stdout)
    assert found["columns"] == {"id": "string", "price": "decimal128(8, 2)"}
    assert sorted(map(str, stored(tmp_path / "r")["id"])) == ["007", "042"]


def test_rows_without_key_are_mentioned(tmp_path: Path) -> None:
    table = pa.table({"id": [1, None, 3, None], "x": [1, 2, 3, 4]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    outcome = run("build", tmp_path / "a.parquet", tmp_path / "r", "--key", "id")
    assert "2 more had a NULL key" in outcome.stdout


def test_inspect_tells_what_a_relation_is(tmp_path: Path, parquet: Path) -> None:
    run("build", parquet, tmp_path / "relation", "--key", "id")
    outcome = run("inspect", tmp_path / "relation", "--check")
    assert outcome.exit_code == 0, outcome.output
    for words in ("version 1", "5", "id (unique; exact in 64 bits)", "by key", "string", "All 1 pages"):
        assert words in outcome.stdout


def test_inspect_states_the_filter_and_whether_it_can_be_read(tmp_path: Path, parquet: Path) -> None:
    path = tmp_path / "relation"
    run("build", parquet, path, "--key", "id")
    assert "bits a key" not in run("inspect", path).stdout
    with filters_built():
        run("build", parquet, path, "--key", "id", "--overwrite")
        semistream.upsert(path, pa.table({"id": [9], "name": ["date"]}))
    (file,) = path.glob("*.filter")
    size = file.stat().st_size
    assert f"{size + 8} B on disk (" in run("inspect", path, "--check").stdout
    found = json.loads(run("inspect", path, "--check", "--json").stdout)
    assert found["filter"] == {"shards": 1, "bytes": size + 8, "keys": 5, "added_keys": 1}
    assert found["notes"] == found["faults"] == []
    file.write_bytes(b"")
    outcome = run("inspect", path, "--check", "--json")
    assert outcome.exit_code == 0, "R is complete without it"
    found = json.loads(outcome.stdout)
    assert found["faults"] == []
    assert "semistream compact" in found["notes"][0]


def test_check_names_every_bad_page(tmp_path: Path) -> None:
    path = tmp_path / "relation"
    semistream.Relation.build(pa.table({"id": range(5000)}), path, key="id", page_size=512, clustered=False).close()
    (pages,) = path.glob("*.pages")
    (leaves,) = path.glob("*.leaves")
    for file, page in ((pages, 3), (pages, 40), (leaves, 2)):
        with open(file, "r+b") as damaged:
            damaged.seek(page * 512 + 77)
            byte = damaged.read(1)
            damaged.seek(page * 512 + 77)
            damaged.write(bytes([byte[0] ^ 4]))
    outcome = run("inspect", path, "--check", "--json")
    assert outcome.exit_code == 1
    faults = json.loads(outcome.stdout)["faults"]
    assert [(fault["file"], fault["page"]) for fault in faults] == [
        (str(pages), 3),
        (str(pages), 40),
        (str(leaves), 2),
    ]
    told = run("inspect", path, "--check")
    assert told.exit_code == 1
    assert "page 40" in told.stderr
    assert "All" not in told.stdout


def test_check_sees_pages_exchanged_between_versions(tmp_path: Path) -> None:
    """Each page is sound and in its place, but of another file; or of this one, and the index belongs to other keys."""
    path = tmp_path / "relation"
    for shift in (0, 7):
        table = pa.table({"id": [number + shift for number in range(5000)]})
        semistream.Relation.build(table, path, key="id", page_size=512, overwrite=True).close()
    first, second = sorted(path.glob("*.pages"), key=lambda file: file.stat().st_mtime_ns)
    second.write_bytes(first.read_bytes())
    assert run("inspect", path).exit_code == 0
    outcome = run("inspect", path, "--check")
    assert outcome.exit_code == 1
    assert "those of another file" in outcome.stderr
    frames = np.fromfile(first, np.uint8).reshape(-1, 512)
    seal(frames, 0, file_seed(second.name))
    frames.tofile(second)
    outcome = run("inspect", path, "--check")
    assert outcome.exit_code == 1
    assert "index gives another key" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inspect", "{dir}/nothing"), ("there is no relation at", "does not exist")),
        (("inspect", "{dir}"), ("without a manifest",)),
        (("build", "{dir}/none.parquet", "{dir}/r", "--key", "id"), ("there is no file", "none.parquet")),
        (("build", "{dir}/a.txt", "{dir}/r", "--key", "id"), ("not a Parquet, CSV or Arrow file",)),
        (("build", "{dir}/a.csv", "{dir}/r", "--key", "ident"), ("ident", "id, name")),
        (("build", "{dir}/a.csv", "{dir}/r", "--key", "id", "--page-size", "1000"), ("multiple of 512", "1000")),
        (("build", "{dir}/a.csv", "{dir}/r", "--key", "id", "--fill", "7"), ("0.1 to 1.0", "7")),
        (("build", "{dir}/a.csv", "{dir}/r", "--key", "id", "--memory", "lots"), ("'lots'", "64MB")),
        (("build", "{dir}/a.csv", "{dir}/r", "--key", "id", "--type", "id=integer"), ("id=integer", "id=int64")),
    ],
)
def test_errors_are_one_message_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    (tmp_path / "a.txt").write_text("hello, world")
    (tmp_path / "a.csv").write_text("id,name\n1,fig\n")
    assert run_main(monkeypatch, *(argument.replace("{dir}", str(tmp_path)) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert all(word in printed.err for word in words), printed.err
    assert not (tmp_path / "r").exists(), "nothing half-built is left"


def test_debug_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["semistream", "--debug", "inspect", str(tmp_path / "nothing")])
    with pytest.raises(semistream.core.errors.NotARelationError):
        main()


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(PRODUCTS, tmp_path / "a.parquet")
    pyarrow.parquet.write_table(PRODUCTS.rename_columns(["id", "title"]), tmp_path / "b.parquet")
    files = InputFiles.find([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    with pytest.raises(InputError, match="title"):
        files.reader().read_all()


def test_csv_whose_type_changes_far_down(tmp_path: Path) -> None:
    lines = "".join(f"{number},x\n" for number in range(400_000))
    (tmp_path / "a.csv").write_text(f"id,name\n{lines}A7,x\n")
    with pytest.raises(InputError, match=r"column 'id': Row #400002: .*'A7'.*--type id=string"):
        InputFiles.find([tmp_path / "a.csv"]).reader().read_all()
    whole = InputFiles.find([tmp_path / "a.csv"], parse_types(["id=string"])).reader().read_all()
    assert whole.num_rows == 400_001


def test_a_damaged_file_is_named(tmp_path: Path, parquet: Path) -> None:
    parquet.write_bytes(parquet.read_bytes()[:200])
    with pytest.raises(InputError, match=r"products\.parquet"):
        InputFiles.find([parquet]).reader().read_all()


def test_progress_reaches_the_size_of_the_files(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        write(PRODUCTS, tmp_path / name)
    files = InputFiles.find([tmp_path])
    positions: list[int] = []
    table = files.reader(lambda position, _: positions.append(position)).read_all()
    assert table.num_rows == 5 * len(WRITERS)
    assert positions == sorted(positions)
    assert positions[-1] == files.nbytes


def test_check_reads_a_version_with_changed_pages(tmp_path: Path) -> None:
    path = tmp_path / "relation"
    table = pa.table({"id": range(5000), "x": range(5000)})
    semistream.Relation.build(table, path, key="id", page_size=512).close()
    pyarrow.parquet.write_table(pa.table({"id": [7, 3000, 9999], "x": [0, 0, 0]}), tmp_path / "new.parquet")
    assert run("upsert", tmp_path / "new.parquet", path).exit_code == 0
    outcome = run("inspect", path, "--check")
    assert outcome.exit_code == 0, outcome.output
    assert "5,001" in outcome.stdout
    assert "version 2" in outcome.stdout
