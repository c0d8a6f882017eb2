"""How many rows are looked up together in relations that are held: as many as their memory allows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.spark.joining.held.image import RESULT_ROOM, Image, build_image
from semistream.spark.joining.join_plan import plan_join
from semistream.spark.joining.star.dimensions import HeldDimension, LookUp
from semistream.spark.joining.star.star_budget import need_of
from semistream.spark.joining.task_relation import TaskRelation

TASKS = 2


class Images:
    """One image that is there already."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def of(self, _: HeldDimension) -> tuple[Image, None]:
        return self.image, None


@pytest.fixture
def image(tmp_path: Path) -> Image:
    table = pa.table({"store": range(500), "city": [f"city {i}" for i in range(500)], "region": range(500)})
    semistream.Relation.build(table, tmp_path / "stores", key="store").close()
    with semistream.Relation.open(tmp_path / "stores") as relation:
        (tmp_path / "image").mkdir()
        build_image(relation, tmp_path / "image")
    return Image(tmp_path / "image")


def test_the_memory_decides_how_many_rows_are_looked_up_together(tmp_path: Path, image: Image) -> None:
    def rows(memory: int, sharing: int = 1) -> int:
        names = ("city", "region")
        added = pa.schema([image.schema.field(name) for name in names])
        relation = TaskRelation(str(tmp_path / "stores"), 1, image.schema, image.key)
        dimension = HeldDimension(relation, ("store",), (0,), names, added, "null", memory, TASKS, True, True)
        look_up = LookUp(dimension, Images(image))  # type: ignore[arg-type]
        found = look_up.rows_at_once(sharing)
        results = sum(column.nbytes for column in image.gather(names)(image.data, look_up.find(
            [pa.array([number % 500 for number in range(found)])], None).astype("int64")))  # fmt: skip
        assert image.nbytes + sharing * TASKS * results <= memory
        return found

    whole = need_of((tmp_path / "stores").absolute()).whole
    assert rows(whole) > 256, "what the image leaves is for results"
    assert rows(whole + RESULT_ROOM) > 4096
    assert rows(whole + RESULT_ROOM, sharing=2) == pytest.approx(rows(whole + RESULT_ROOM) / 2, rel=0.01)
    assert rows(1 << 28) == 16_384, "larger batches are slower"


@pytest.mark.spark
def test_a_share_of_a_small_relation_has_room_for_results(spark: SparkSession, tmp_path: Path, image: Image) -> None:
    sales = spark.range(10).withColumnRenamed("id", "store")
    share = plan_join(sales, tmp_path / "stores", on="store", memory="5%")
    paged = plan_join(sales, tmp_path / "stores", on="store", memory="5%", hold=False)
    assert share.algorithm.held
    assert share.memory.total == paged.memory.total + RESULT_ROOM
    exact = plan_join(sales, tmp_path / "stores", on="store", memory=paged.memory.total)
    assert exact.algorithm.held
    assert exact.memory.total == paged.memory.total
