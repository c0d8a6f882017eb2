"""Options that expect text, given something else: the error names the option, the value, and what to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import UnsupportedJoinError

WRONG = [["at"], 5, {"at": 1}, b"at"]


@pytest.fixture
def relation(tmp_path: Path) -> semistream.Relation:
    table = pa.table({"id": [1, 2], "name": ["a", "b"], "since": pa.array([1, 1], pa.timestamp("s"))})
    return semistream.Relation.build(table, tmp_path / "relation", key="id", valid_from="since")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("option", ["as_of", "suffix", "prefix"])
def test_text_options_refuse_other_values(relation: semistream.Relation, option: str, wrong: Any) -> None:
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("s")})
    options = {"on": "id", "as_of": "at", "schema": schema, "memory": "1MB", option: wrong}
    with relation, pytest.raises(ValueError, match=f"{option} must be text, .* of .*, not ") as caught:
        semistream.create("inlj", relation, **options)
    assert str(caught.value).endswith(repr(wrong))


@pytest.mark.parametrize("wrong", WRONG)
def test_an_algorithm_is_text(relation: semistream.Relation, wrong: Any) -> None:
    with relation, pytest.raises(ValueError, match="algorithm must be text, the id of an algorithm, not "):
        semistream.create(wrong, relation, on="id")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_condition_is_one_of_three(relation: semistream.Relation, wrong: Any) -> None:
    with relation, pytest.raises(UnsupportedJoinError, match="condition must be one of 'equal', "):
        semistream.create("inlj", relation, on="id", condition=wrong)


@pytest.mark.parametrize("wrong", [5, b"id", [5], ["id", None]])
@pytest.mark.parametrize("option", ["on", "columns"])
def test_names_of_columns_are_text(relation: semistream.Relation, option: str, wrong: Any) -> None:
    options = {"on": "id", option: wrong}
    with relation, pytest.raises(ValueError, match="names of columns must be text, or a list of texts, not "):
        semistream.create("inlj", relation, **options)


@pytest.mark.parametrize("wrong", [5, b"id", [5]])
def test_the_key_of_a_relation_is_text(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match="names of columns must be text, or a list of texts, not "):
        semistream.Relation.build(pa.table({"id": [1]}), tmp_path / "relation", key=wrong)
    assert not (tmp_path / "relation").exists()
