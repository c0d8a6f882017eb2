"""The documentation: built with strict links, a page and a figure for each join, and every snippet runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semistream.cli import app
from semistream.joins import algorithms

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
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return place


@pytest.mark.slow
def test_every_join_has_a_page_with_a_figure(site: Path) -> None:
    for name in algorithms():
        text = (site / "algorithms" / f"{name.replace('+', '-')}.html").read_text()
        (drawing,) = re.findall(r'<svg class="structures".*?</svg>', text, re.DOTALL)
        figure = ElementTree.fromstring(drawing)
        boxes = figure.findall("{http://www.w3.org/2000/svg}rect")
        numbers = figure.findall("{http://www.w3.org/2000/svg}circle")
        assert len(boxes) >= 4, name
        assert len(numbers) >= 3, name
        assert figure.find("{http://www.w3.org/2000/svg}desc") is not None
        assert re.search(rf"<figcaption>[^<]*{re.escape(name)}: [0-9]+ k tuples/s", text), "and what it was measured at"


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


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_python_of_how_to_pages(page: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = [text for language, text in blocks(page) if language == "python"]
    if not python:
        pytest.skip("no Python on this page")
    monkeypatch.chdir(tmp_path)
    for folder in ("sales", "changes"):
        Path(folder).mkdir()
    # The JVM was started elsewhere, and resolves relative paths from there.
    paths = re.compile(r'(?<!metrics=)(?<!Dashboard\()"(products\.parquet|products|sales|changes|check)"')
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
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command as it stands there; those that start Spark in a process of their own."""
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
                command = [sys.executable, "-c", "from semistream.cli import main; main()", *arguments]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
                assert done.returncode == 0, done.stderr[-2000:]
                printed += done.stdout
                assert "batch 3: 10,000 rows" in done.stdout, "a line for each micro-batch"
                continue
            outcome = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
            assert outcome.exit_code == 0, (line, outcome.output, outcome.exception)
            printed += outcome.stdout
    assert "40,000 rows in 4 micro-batches" in printed
    assert "[[join]]" in printed, "what tune recommends, for the file"
    assert "upsert" in printed, "history names what was done"


def test_the_picture_is_of_the_committed_results() -> None:
    script = ROOT / "docs" / "_site" / "ratio.py"
    names: dict[str, Any] = {"__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert names["drawn"]() == (ROOT / "docs" / "ratio.svg").read_text(), "run docs/_site/ratio.py"
