from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import semistream
import semistream.lookups
from semistream.joins import algorithms, find


def test_version_is_that_of_the_distribution() -> None:
    assert semistream.__version__ == importlib.metadata.version("semistream")


def test_every_public_name_is_there() -> None:
    for name in ("Relation", "algorithms", "create", "join", "spark"):
        assert name in dir(semistream)
        assert getattr(semistream, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        semistream.nothing  # noqa: B018


def test_everything_public_is_on_the_reference_page() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference.md").read_text()
    shown = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    own = {f"semistream.{name}" for name in semistream.__all__} - {"semistream.__version__", "semistream.spark"}
    on_spark = {
        f"semistream.spark.{name}"
        for name in semistream.spark.__all__
        if getattr(semistream.spark, name) is not getattr(semistream, name, None)
    }
    looking_up = {f"semistream.lookups.{name}" for name in semistream.lookups.__all__}
    assert shown - {"semistream.dashboard.Dashboard"} == own | on_spark | looking_up
    for name in shown:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute) is not None
    members = re.search(r"::: semistream.Relation\n.*\n +members: \[(.*)\]", page)
    assert members is not None
    for name in members[1].split(", "):
        assert inspect.getdoc(getattr(semistream.Relation, name)), name


def test_every_error_of_the_product_can_be_caught_by_a_public_name() -> None:
    """Those of commands are for who types them, and those of the laboratory are not the product's."""
    for module in pkgutil.walk_packages(semistream.__path__, "semistream."):
        if not module.name.startswith(("semistream.cli", "semistream.benchmarks", "semistream.experiments")):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                foreign = not str(error.name).startswith("semistream")
                if not (
                    module.name.startswith("semistream.adapters.") and foreign
                ):  # an adapter's package may be missing
                    raise
    found, todo = set(), [semistream.errors.SemistreamError]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if re.match(r"semistream\.(core|relation|costs|joins|structures|tuner|spark|dashboard)\.", kind.__module__):
            found.add(kind)
    assert {getattr(semistream.errors, name) for name in semistream.errors.__all__} == found
    assert [name for name in semistream.errors.__all__ if getattr(semistream.errors, name).__name__ != name] == []


def test_joins_need_no_spark() -> None:
    program = "import sys, semistream; semistream.create, semistream.Relation; print('pyspark' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("algorithm", algorithms())
def test_a_join_imports_no_other_join_but_what_stands_behind_it(algorithm: str) -> None:
    own = find(algorithm).__module__
    mine = {own} | {
        behind.__module__
        for other in algorithms()
        if find(other).__module__ == own and (behind := getattr(find(other), "behind", None))
    }
    others = {find(other).__module__ for other in algorithms()} - mine
    module = sys.modules[find(algorithm).__module__]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            imported = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        else:
            continue
        assert not imported & others, f"{module.__name__} imports {imported & others}; let what they share sink"
