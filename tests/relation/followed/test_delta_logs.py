"""What a Delta log may contain, and what may happen to it while it is followed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream
from semistream.relation.relation import Relation


def rows(path: Path) -> list[dict[str, object]]:
    with Relation.open(path) as relation:
        return relation.to_table().sort_by("id").to_pylist()


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_texts_with_line_ends_of_unicode(tmp_path, end):
    """JSON does not escape these. They are in a log as parts of statistics and of partitions' values."""
    table, path = tmp_path / "table", tmp_path / "r"
    first = pa.table({"id": [1, 2], "name": [f"a{end}b", "c"], "part": ["x", f"y{end}"]})
    write_deltalake(table, first, partition_by=["part"])
    semistream.follow(table, path, key="id")
    DeltaTable(table).update(predicate="id = 2", updates={"name": f"'z{end}'"})
    semistream.follow(table, path)
    assert rows(path) == [{"id": 1, "name": f"a{end}b", "part": "x"}, {"id": 2, "name": f"z{end}", "part": f"y{end}"}]
