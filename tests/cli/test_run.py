"""What `semistream run` says of a query that has ended."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

pytest.importorskip("pyspark")

import semistream
from semistream.cli.run import _has_commits, _summary
from semistream.spark.monitoring.listening import BatchTotals
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.plan import PipelinePlan
from semistream.spark.pipeline.reading import read_plan


def plan(place: Path, trigger: str) -> PipelinePlan:
    (place / "sales").mkdir(exist_ok=True)
    semistream.Relation.build(pa.table({"id": [1]}), place / "products", key="id", overwrite=True).close()
    text = f"""
checkpoint = "checkpoint"
trigger = "{trigger}"
[source]
format = "parquet"
path = "sales"
schema = "id bigint"
[[join]]
relation = "products"
on = "id"
[sink]
format = "console"
"""
    document = Document(place / "p.toml", text, {})
    found = read_plan(document)
    assert [str(problem) for problem in document.problems] == []
    return found


@pytest.mark.parametrize(
    ("trigger", "committed", "told"),
    [
        ("available now", True, "nothing new: all that the source has was joined before"),
        ("available now", False, "no rows came"),
        ("10 seconds", True, "no rows came"),
    ],
)
def test_a_query_without_rows_says_no_more_than_is_known(
    tmp_path: Path, trigger: str, committed: bool, told: str
) -> None:
    found = plan(tmp_path, trigger)
    assert found.checkpoint is not None
    (found.checkpoint / "commits").mkdir(parents=True)
    (found.checkpoint / "commits" / ".0.crc").touch()
    if committed:
        (found.checkpoint / "commits" / "0").touch()
    screen = Console(record=True, width=120)
    screen.print(_summary("sales", BatchTotals(), found, before=_has_commits(found)))
    assert told in screen.export_text()
