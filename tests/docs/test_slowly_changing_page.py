"""The page on slowly changing dimensions is true: its Python runs, and its commands do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from semistream.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "slowly-changing-dimensions.md").read_text()


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # the part on Spark runs with those of the other pages
    code = re.findall(r"^```python\n(.*?)^```", PAGE.split("\n## On Spark\n")[0], re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for part in code:
        exec(compile(part, "slowly-changing-dimensions.md", "exec"), names)
    prices = names["prices"]
    assert isinstance(prices, pa.Table)
    pq.write_table(prices, "prices.parquet")
    Path("changes.csv").write_text("id,price\n7,130\n9,10\n")
    Path("gone.csv").write_text("id\n8\n")
    Path("products").rename("earlier")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [command for language, block in blocks if not language for command in block.splitlines()]
    commands = [command for command in commands if " bench " not in command]  # it runs for minutes
    assert len(commands) == 4
    for command in commands:
        done = CliRunner().invoke(app, command.split()[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert [line.split()[1:7:2] for line in done.output.splitlines() if line.startswith("│")] == [
        ["2026-01-01", "2026-02-01", "7"],
        ["2026-02-01", "2026-03-01", "7"],
        ["2026-03-01", "–", "7"],
    ]
