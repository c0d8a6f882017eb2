"""Every join gives the same results, in the same budgets, for a relation whose rows are in several layouts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
from semistream.relation.relation import Relation
from semistream_lab.conformance import checks
from semistream_lab.conformance.cases import CASES, PACKED, Case, case, packing_all


def evolved_case(name: str, path: Path) -> Case:
    """Return a case of the conformance suite whose relation became what it is: most rows are in an earlier layout."""
    of, options = case(name), dict(CASES[name])
    now = of.master
    if "row" in now.schema.names:
        now = now.set_column(now.schema.get_field_index("row"), "row", now["row"].cast(pa.int16()))
    added = now.schema.names[-1] == "amount"  # in packed cases each row has its own, so it cannot be a default
    first = now.drop_columns(["amount"]) if added else now
    renamed = ["label" if name == "name" else name for name in first.schema.names]
    first = first.rename_columns(renamed).add_column(1, "gone", pa.array(["gone"] * now.num_rows, pa.string()))
    given = {key: option for key, option in options.items() if key not in ("key", "keys", "repeats", "values")}
    with packing_all() if name in PACKED else contextlib.nullcontext():
        relation = Relation.build(first, path / name, list(of.key), **{"page_size": 512, **given})
    changes: dict[str, Any] = {"drop": ["gone"]}
    if "label" in renamed:
        changes["rename"] = {"label": "name"}
    if "row" in renamed:
        changes["widen"] = {"row": pa.int64()}
    if added:
        kind = of.master.schema.field("amount").type
        default = {} if pa.types.is_null(kind) else {"amount": 1}
        changes |= {"add": {"amount": kind}, "defaults": default}
    relation.evolve(**changes)
    if options.get("clustered", True) and now.num_rows:
        keys = now.select(list(of.key)).group_by(list(of.key)).aggregate([]).slice(0, 10)
        relation.upsert(of.master.join(keys, list(of.key), join_type="left semi").select(of.master.schema.names))
        relation = Relation.open(path / name)
    assert relation.schema.equals(of.master.schema)
    return dataclasses.replace(of, relation=relation, _answers={})


@pytest.fixture(scope="module")
def evolved_cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def found(name: str) -> Case:
        if name not in made:
            made[name] = evolved_case(name, tmp_path_factory.mktemp("evolved"))
        return made[name]

    return found


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", ["adaptivejoin", "cachejoin", "inlj", "oracle", "ssij"])
def test_joins_of_a_relation_with_several_layouts(
    algorithm: str, evolved_cases: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "case", evolved_cases)
    some = ("unique, left", "repeated, inner", "fixed rows, left", "scattered text, left", "sharded, left",
            "1.0 times the least memory", "arrays within the reservations")  # fmt: skip
    for check in checks.checks(algorithm):
        if check.name in some:
            check()


@pytest.mark.long
@pytest.mark.parametrize("algorithm", sorted(semistream.algorithms()))
def test_conformance_of_all_joins_with_several_layouts(
    algorithm: str, evolved_cases: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "case", evolved_cases)
    for check in checks.checks(algorithm):
        check()
