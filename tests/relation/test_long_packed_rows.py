"""Packing makes some rows longer. A build packs less if they would not fit into pages; an update says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from packed_builds import builds_as_released
from semistream.core.errors import RelationBuildError
from semistream.relation.relation import Relation

ROWS, COLUMNS, PAGE = 40_000, 40, 512


def zeros(rows: int, first: int = 0) -> pa.Table:
    """Return rows whose columns are 0, which packing leaves out."""
    columns = {f"c{number}": pa.array(np.zeros(rows, np.int32)) for number in range(COLUMNS)}
    return pa.table({"id": np.arange(first, first + rows), **columns})


def others(first: int) -> pa.Table:
    """Return a row of the same columns that has no 0: 160 bytes plain, and 14 per value if all are escaped."""
    return pa.table({"id": [first], **{f"c{number}": pa.array([number + 1], pa.int32()) for number in range(COLUMNS)}})


@pytest.mark.parametrize("options", [{}, {"clustered": False}, {"shards": 3}, {"indexes": ["c0"]}])
def test_a_build_packs_fewer_columns_if_a_row_would_not_fit(tmp_path: Path, options: dict[str, object]) -> None:
    data = pa.concat_tables([zeros(ROWS), others(ROWS)])
    with builds_as_released(), Relation.build(data, tmp_path / "r", "id", page_size=PAGE, **options) as relation:  # type: ignore[arg-type]
        assert relation.packing is not None
        assert 10 < len(relation.packing.columns) < COLUMNS
        assert relation.to_table().sort_by("id").combine_chunks().equals(data.combine_chunks())


def test_long_text_that_is_not_like_the_rest(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    texts = [f"the order of customer {i % 997} was delivered to the door {i}" for i in range(ROWS)]
    codes = "".join(map(chr, rng.integers(33, 127, PAGE - 48 - 21)))  # the longest text that fits plain
    data = pa.table({"id": np.arange(ROWS + 1), "text": [*texts, codes]})
    with builds_as_released(), Relation.build(data, tmp_path / "r", "id", page_size=PAGE) as relation:
        assert relation.to_table().combine_chunks().equals(data)


def test_an_update_of_fixed_rows_always_fits(tmp_path: Path) -> None:
    with builds_as_released(), Relation.build(zeros(ROWS), tmp_path / "r", "id", page_size=PAGE) as relation:
        assert relation.packing is not None
        relation.apply(upserts=others(7))
        assert relation.lookup(pa.array([7]))["c39"].to_pylist() == [40]


def test_an_update_with_a_row_that_fits_only_plain_says_so_and_changes_nothing(tmp_path: Path) -> None:
    texts = pa.array([f"{number:08}" for number in range(ROWS)])
    rows, long = zeros(ROWS).append_column("text", texts), others(7).append_column("text", pa.array(["é" * 120]))
    with builds_as_released(), Relation.build(rows, tmp_path / "r", "id", page_size=PAGE) as relation:
        assert relation.packing is not None
        wanted = r"a row takes 6\d\d bytes.*512 B.*encoding='plain', in which this row takes 41\d bytes"
        with pytest.raises(RelationBuildError, match=wanted):
            relation.apply(upserts=long)
        assert relation.to_table().combine_chunks().equals(rows.combine_chunks())
    with Relation.build(rows, tmp_path / "p", "id", page_size=PAGE, encoding="plain") as relation:
        relation.apply(upserts=long)
        assert relation.lookup(pa.array([7]))["text"].to_pylist() == ["é" * 120]
