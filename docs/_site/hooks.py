"""Generated parts of the site: a page for each join of the registry, and links that work in both places."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import as_markdown
from figures import FIGURES, svg
from mkdocs.structure.files import File, Files
from plots import plots

from semistream.core.errors import SemistreamError
from semistream.costs import costs_of
from semistream.joins import algorithms, find

_DOCSTRING = """::: {module}.{name}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: false
      show_source: false
      show_bases: false"""
_INDEX = """# The joins

All joins have the same interface, and return the same exact result within one memory budget. They differ in what they
keep in memory, what they read, and which tuples a read serves. The cost models say [which one to use](../tuning.md).

| id | what it is | when |
|---|---|---|
"""


def _file_name(name: str) -> str:
    return name.replace("+", "-")


def _algorithm_page(name: str) -> str:
    kind = find(name)
    figure = FIGURES.get(name)
    parts = [f"# {kind.title}", f'`algorithm="{name}"` · [all joins](index.md)']
    parts.append(f"**When.** {kind.when or kind.title}")
    if figure is not None:
        parts.append(svg(name, figure))
        parts.append("\n".join(f"{number}. {text}" for number, (_, _, text) in enumerate(figure.steps, 1)))
    parts += ["## What it does", _DOCSTRING.format(module=kind.__module__, name=kind.__name__)]
    if (model := _cost_model(name)) is not None:
        parts += ["## Its cost model", model]
        parts.append("The costs that all models use, and their accuracy: [tuning](../tuning.md#the-models).")
    parts.append("## Measured")
    if drawn := plots(name):
        parts.append(drawn)
    pages = {"service rates": "service-rates", "comparison with others": "peers", "experiments": "experiments"}
    listed = ", ".join(f"[{told}](../{page}.md)" for told, page in pages.items())
    parts.append(f"How this was measured, and what it means: {listed}.")
    return "\n\n".join(parts)


def _cost_model(name: str) -> str | None:
    """Return the docstring of a model's module as Markdown."""
    try:
        module = sys.modules[type(costs_of(name)).__module__]
    except SemistreamError:  # the oracle has no budget
        return None
    return as_markdown(inspect.getdoc(module) or "")


def on_config(config: Any) -> Any:
    """List the pages of the joins in the navigation."""
    pages = [{name: f"algorithms/{_file_name(name)}.md"} for name in algorithms()]
    for entry in config.nav:
        if isinstance(entry, dict) and "Joins" in entry:
            entry["Joins"] = [{"Which one?": entry["Joins"]}, *pages]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each join, and a list of them."""
    rows = []
    for name in algorithms():
        page = f"{_file_name(name)}.md"
        rows.append(f"| [`{name}`]({page}) | {find(name).title} | {find(name).when} |")
        files.append(File.generated(config, f"algorithms/{page}", content=_algorithm_page(name)))
    files.append(File.generated(config, "algorithms/index.md", content=_INDEX + "\n".join(rows)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Show links to sources outside the documentation as paths; folders of results are not pages."""
    out = re.sub(r"\[([^\]]+)\]\((?:\.\./)+((?:src|lab|tests)/[^)]+)\)", r"\1 (`\2`)", markdown)
    return re.sub(r"\[([^\]]+)\]\((results)\)", r"\1 (`docs/\2`)", out)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Use the site's own copy of the script that search needs in pages opened from disk, instead of fetching it."""
    here = "../" * page.url.count("/")
    return re.sub(r"https://[^\s\"'<>]+/iframe-worker/shim", f"{here}javascripts/iframe-worker.js", output)
