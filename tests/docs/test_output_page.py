"""What commands print is explained line by line: no line of theirs is left out of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream
from semistream.cli import app
from semistream.workloads import ZipfKeys

PAGE = (Path(__file__).parents[2] / "docs" / "output.md").read_text()


def explained(heading: str) -> set[str]:
    """Return the words in the first column of a section's table."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    return set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", section[1], re.MULTILINE))))


def printed(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})
    assert outcome.exit_code == 0, outcome.exception
    return outcome.stdout


@pytest.mark.slow
def test_every_line_is_explained(tmp_path: Path) -> None:
    table = pa.table({"id": range(20_000), "name": [f"name {number}" for number in range(20_000)]})
    semistream.Relation.build(table, tmp_path / "r", "id", shards=2).close()
    keys = ZipfKeys(20_000, 1.0, "random", seed=1).keys(0, 20_000)
    pq.write_table(pa.table({"id": keys}), tmp_path / "sample.parquet")
    plan = ("plan", "--relation-rows", "1M", "--rate", "100", "--memory", "5%", "--algorithm", "inlj")
    tune = ("tune", tmp_path / "r", "--memory", "20%", "--sample", tmp_path / "sample.parquet", "--algorithm", "inlj")
    for command, arguments in {"inspect": ("inspect", tmp_path / "r"), "plan": plan, "tune": tune}.items():
        whole = printed(*arguments)
        told = re.split(r"\nColumns|\n *\n", whole)[0]
        lines = re.findall(r"^([a-z][\w/ ]*?)  +\S", told, re.MULTILINE)
        assert len(lines) >= 4, told
        assert set(lines) <= explained(command), command
    headings = re.search(r"^ join .*$", whole, re.MULTILINE)
    assert headings is not None
    assert set(headings[0].split()) - {"join"} <= explained("tune")
