from __future__ import annotations

import ast
import importlib.metadata
import inspect
import subprocess
import sys

import pytest

import semistream
from semistream.joins import algorithms, find


def test_version_is_that_of_the_distribution() -> None:
    assert semistream.__version__ == importlib.metadata.version("semistream")


def test_every_public_name_is_there() -> None:
    for name in ("Relation", "algorithms", "create", "join", "spark"):
        assert name in dir(semistream)
        assert getattr(semistream, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        semistream.nothing  # noqa: B018


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
