"""The README is true: its Python runs, its table is the registry, its files exist."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.cli.algorithms import markdown_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def code(heading: str) -> str:
    """Return the Python under a heading."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## )", README, re.MULTILINE | re.DOTALL)
    assert section is not None, heading
    (block,) = re.findall(r"^```python\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    return str(block)


def test_no_python_is_left_out() -> None:
    assert sorted(BLOCKS) == sorted([code("In Python"), code("On Spark")])


def test_the_two_commands_come_first() -> None:
    first = README.index("```")
    assert README[first:].startswith("```\nmake demo")
    assert "make test" in README[first : first + 200]
    assert README[:first].count("\n\n") == 2, "a title and one sentence stand before them"


def test_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(code("In Python"), names)
    assert names["enriched"].sort_by("sale").to_pydict() == {
        "sale": [0, 1, 2, 3, 4, 5],
        "id": [7, 42, 7, 99_999, -1, None],
        "name": ["product 7", "product 42", "product 7", "product 99999", None, None],
    }
    assert "pages read" in printed.getvalue()


@pytest.mark.spark
def test_spark_example(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    products = pa.table({"id": range(200_000), "name": [f"product {number}" for number in range(200_000)]})
    pq.write_table(products, "products.parquet")
    Path("sales").mkdir()
    pq.write_table(pa.table({"sale": [1, 2, 3], "id": [7, 199_999, -1]}), "sales/part-0.parquet")
    # The JVM was started elsewhere, and resolves relative paths from there.
    script = re.sub(r'"(products\.parquet|relation|sales|checkpoint|facts)"', rf'"{tmp_path}/\1"', code("On Spark"))
    names: dict[str, Any] = {}
    exec(script, names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    facts = spark.read.parquet(f"{tmp_path}/facts").orderBy("sale").collect()
    assert [(row.sale, row.id, row.name) for row in facts] == [
        (1, 7, "product 7"),
        (2, 199_999, "product 199999"),
        (3, -1, None),
    ]


def test_every_extra_is_in_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = README[README.index("## Install") : README.index("## More")]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == (
        project["optional-dependencies"].keys() - {"docs", "dev"}
    )


def test_table_of_algorithms_is_the_registry() -> None:
    assert markdown_table() in README, "run: semistream algorithms --markdown"


@pytest.mark.parametrize("page", ["README.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))])
def test_files_linked_to_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    made = ("algorithms/",)  # pages of the site that are made of the registry; building it checks these links
    missing = [link for link in links if not link.startswith(made) and not ((ROOT / page).parent / link).exists()]
    assert missing == []
