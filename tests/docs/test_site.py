"""The documentation: built with strict links, a page and a figure for each join, and every snippet runs."""

from __future__ import annotations

import html
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream
from browser import PATIENCE, open_context
from semistream.cli import app
from semistream.joins import Join, algorithms, find
from semistream.workloads import ZipfKeys

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the languages and texts of a page's snippets, those in lists without their indent."""
    found = BLOCK.findall(page.read_text())
    return [(language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)) for indent, language, text in found]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    place = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-d",
        str(place),
        "-f",
        str(ROOT / "mkdocs.yml"),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lab' / 'src'}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return place


@pytest.mark.long
@pytest.mark.slow
def test_every_join_has_a_page_with_a_figure(site: Path) -> None:
    """A join of our own choice of place has both; for one that is new they are optional."""
    for name in algorithms():
        text = (site / "algorithms" / f"{name.replace('+', '-')}.html").read_text()
        assert f'algorithm="{name}"' in html.unescape(text)
        if find(name).place == Join.place and '<svg class="structures"' not in text:
            continue
        (drawing,) = re.findall(r'<svg class="structures".*?</svg>', text, re.DOTALL)
        figure = ElementTree.fromstring(drawing)
        boxes = figure.findall("{http://www.w3.org/2000/svg}rect")
        numbers = figure.findall("{http://www.w3.org/2000/svg}circle")
        assert len(boxes) >= 4, name
        assert len(numbers) >= 3, name
        assert figure.find("{http://www.w3.org/2000/svg}desc") is not None
        assert re.search(rf"<figcaption>[^<]*{re.escape(name)}: [0-9]+ k tuples/s", text), "and what it was measured at"


@pytest.mark.slow
def test_each_parameter_has_a_description_of_its_own(site: Path) -> None:
    """Names that shared an entry of a docstring had one merged description on the site."""
    name, description = r"<b>\s*<code>(.*?)</code>", r'<div class="doc-md-description">(.*?)</div>'
    entry = rf'<li class="doc-section-item field-body">\s*{name}.*?{description}'
    shared, count = [], 0
    for page in site.rglob("*.html"):
        entries = re.findall(entry, page.read_text(), re.DOTALL)
        count += len(entries)
        shared += [
            (page.name, one, other)
            for (one, first), (other, second) in itertools.pairwise(entries)
            if first == second and one != other
        ]
    assert count > 50
    assert shared == []


@pytest.mark.slow
def test_tables_of_docstrings_are_tables(site: Path) -> None:
    for name in algorithms():
        text = (site / "algorithms" / f"{name.replace('+', '-')}.html").read_text()
        assert "====" not in text, name
        assert "symbol   " not in text, name
    assert "<th>symbol</th>" in (site / "algorithms" / "cachejoin.html").read_text()


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in (site / "index.html", site / "how-to" / "update-r.html", site / "algorithms" / "ssij.html"):
        loaded = re.findall(r'<(?:script|img|link|source|iframe)\b[^>]*?(?:src|href)="([^"]+)"', page.read_text())
        assert loaded
        assert [address for address in loaded if address.startswith(("http:", "https:", "//"))] == []


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in there if not page.startswith("results")} <= listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pipeline_files_are_right(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from semistream.spark.pipeline.document import Document
    from semistream.spark.pipeline.reading import read_plan

    for language, text in blocks(page):
        assert language in ("python", "sh", "toml", "text"), f"{page.name} has a snippet that nobody runs"
        if language == "toml":
            document = Document(tmp_path / "pipeline.toml", text, {})
            read_plan(document)
            wrong = [problem.message for problem in document.problems]
            assert [message for message in wrong if not message.startswith("there is no relation at")] == []


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES[1:] if page.stem != "python"], ids=lambda page: page.stem)
def test_python_of_how_to_pages(page: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on Python without Spark has a test of its own."""
    python = [text for language, text in blocks(page) if language == "python"]
    if not python:
        pytest.skip("no Python on this page")
    monkeypatch.chdir(tmp_path)
    for folder in ("sales", "changes"):
        Path(folder).mkdir()
    # The JVM was started elsewhere, and resolves relative paths from there.
    paths = re.compile(
        r'(?<!metrics=)(?<!Dashboard\()(?<!View\()"(products\.parquet|products|shops|sales|changes|check)"(?!:)'
    )
    names: dict[str, Any] = {"spark": spark}
    listening = None
    try:
        for text in python:
            exec(compile(paths.sub(rf'"{tmp_path}/\1"', text), str(page), "exec"), names)
        listening = names.get("listener")
    finally:
        if listening is not None:
            spark.streams.removeListener(listening)
            for report in listening.reports:
                report.close()


@pytest.mark.slow
@pytest.mark.spark
def test_python_of_reference_pages(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands outside of tutorial and how-to pages, in the order of the pages."""
    pytest.importorskip("deltalake")
    pytest.importorskip("obstore")
    monkeypatch.chdir(tmp_path)
    products = pa.table({"product_id": range(1, 2001), "name": [f"article {number}" for number in range(1, 2001)]})
    for place in (tmp_path / "data" / "products", "memory://warehouse/products"):
        semistream.Relation.build(products, place, key="product_id", shards=2).close()
    sold = pa.table({"sale": [1, 2], "product_id": [2, 9999]})
    often = pa.table({"sale": range(2000), "product_id": ZipfKeys(2000, 1.0, "random", seed=3).keys(0, 2000)})
    Path("sales").mkdir()
    pq.write_table(sold, "sales/0.parquet")
    others = [page for page in sorted((ROOT / "docs").glob("*.md")) if page not in PAGES]
    python = {page.stem: [text for language, text in blocks(page) if language == "python"] for page in others}
    assert {stem for stem, found in python.items() if found} == {"object-stores", "pipeline", "tuning"}
    paths = {
        "s3://": "memory://",
        '"relation"': '"/data/products"',
        '"id"': '"product_id"',
        '"5%"': '"1MB"',
        '"/data/products"': f'"{tmp_path}/data/products"',
    } | {f'"{name}"': f'"{tmp_path}/{name}"' for name in ("facts", "unknown_products", "check")}
    with semistream.Relation.open(tmp_path / "data" / "products") as relation:
        sales = spark.readStream.schema("sale long, product_id long").parquet(str(tmp_path / "sales"))
        names: dict[str, Any] = {
            "semistream": semistream, "spark": spark, "sales": sales, "stream_df": sales, "relation": relation,
            "first_batches": often.to_batches(), "gone": spark.createDataFrame([(1,)], "product_id long"),
            "changes": spark.createDataFrame([(3, "d")], "product_id long, name string"),
        }  # fmt: skip
        for text in (text for found in python.values() for text in found):
            for theirs, ours in paths.items():
                text = text.replace(theirs, ours)
            exec(compile(text, "docs", "exec"), names)
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
    with semistream.Relation.open(tmp_path / "data" / "products") as newest:
        rows = newest.to_table().sort_by("product_id").slice(0, 2)
        assert rows.to_pydict() == {"product_id": [2, 3], "name": ["article 2", "d"]}
    assert pq.read_table(tmp_path / "unknown_products")["sale"].to_pylist() == [2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.server
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Every command as it stands there; those that start Spark in a process of their own, with the live page."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = ""
    for language, text in blocks(PAGES[0]):
        if language == "python":
            exec(compile(text, "tutorial", "exec"), names)
        elif language == "toml":
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
        for line in text.splitlines() if language == "sh" else ():
            arguments = shlex.split(line)[1:]
            if arguments[0] == "run" and "--check" in arguments:
                continue  # what it says, the next command says too
            if arguments[0] == "run":
                told = _watched([*arguments, "--dashboard", "--port", "0"], request)
                assert "batch 3: 10,000 rows" in told, "a line for each micro-batch"
                printed += told
                continue
            outcome = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
            assert outcome.exit_code == 0, (line, outcome.output, outcome.exception)
            printed += outcome.stdout
    assert "40,000 rows in 4 micro-batches" in printed
    assert "[[join]]" in printed, "what tune recommends, for the file"
    assert "upsert" in printed, "history names what was done"


def _watched(arguments: list[str], request: pytest.FixtureRequest) -> str:
    """Run a pipeline to its end while a browser, if there is one, has its live page open; return what was printed."""
    # there before the pipeline is, which ends by itself
    context = open_context(request.getfixturevalue("chromium")) if shutil.which("chromium") else None
    command = [sys.executable, "-c", "from semistream.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        stop = threading.Timer(2 * PATIENCE, process.kill)
        stop.start()
        told = ""
        while "Live page at" not in told and (line := process.stdout.readline()):
            told += line
        errors: list[str] = []
        if context is not None and "Live page at" in told:
            page = context.new_page()
            page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(told.split()[-1])
            page.locator("#batches tbody tr").nth(3).wait_for()
            page.locator('#state[data-state="ended"]').wait_for()
            assert "40K rows" in page.locator("#since").inner_text()
            context.close()
        told += process.stdout.read()
        wrong = process.stderr.read()
        assert process.wait() == 0, wrong[-2000:]
        stop.cancel()
    assert errors == []
    return told


def test_the_picture_is_of_the_committed_results() -> None:
    script = ROOT / "docs" / "_site" / "ratio.py"
    names: dict[str, Any] = {"__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert names["drawn"]() == (ROOT / "docs" / "ratio.svg").read_text(), "run docs/_site/ratio.py"
