"""A join of another package: two modules and two entry points, and everything knows it; nothing here is edited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import semistream

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a join of another package")]  # one run for all

TESTS = Path(__file__).parents[1]

JOIN = '''
from semistream.joins import Join
from semistream.structures.lookup import PageLookup


class Tiny(Join):
    """Each tuple is looked up through the index, one page in memory."""

    id = "tiny"
    title = "one page at a time"
    waits = False

    def least_bytes(self):
        return self.relation.device.frame_bytes

    def open_parts(self):
        self.lookup = PageLookup(self.relation, 1, share=True, cap=self.pairs_at_once)
        self.budget.reserve("disk buffer", self.lookup.nbytes)

    def turn(self):
        for part in self.stream.take(self.pairs_at_once):
            yield from self.looked_up(part, self.lookup)


class Forgetful(Tiny):
    """Loses a tuple a turn: what the conformance suite is for."""

    id = "forgetful"
    title = "one tuple a turn is lost"

    def turn(self):
        for part in self.stream.take(self.pairs_at_once):
            yield from self.looked_up(type(part)(part.keys[1:], part.batch.slice(1)), self.lookup)
'''

COSTS = '''
from semistream.costs.basis.model import common_memory
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes


class TinyCosts(DiskCosts):
    """A read for each tuple."""

    id = "tiny"

    def serve(self, setting, memory, keys, **options):
        parts = common_memory(setting, memory, index=True)
        if parts.free < setting.frame_bytes:
            raise self.too_small(setting, parts, setting.frame_bytes)
        parts.give("disk buffer", setting.frame_bytes)
        return Served(
            parts, options, probes=1.0, reads=1.0, pages=1.0, seek=setting.seek_with(1), turns=1.0,
            events=matched_in_passes(keys, 1.0), waits=False,
        )

    def least(self, setting, **options):
        return setting.frame_bytes

    def choices(self, setting, memory):
        return {}


COSTS = (TinyCosts(),)
'''

ENTRY_POINTS = """
[semistream.joins]
tiny = mytiny

[semistream.costs]
tiny = mytiny_costs
"""

CHECKED = """
import json, sys
import pyarrow as pa
import semistream
from semistream_lab.conformance.checks import checks
from semistream.costs import modelled
from semistream.tuner import tune

failed = {"tiny": {}, "forgetful": {}}
for name, found in failed.items():
    # of the one that is wrong, some checks will do
    for check in checks(name):
        if name == "tiny" or check.name.startswith("unique,"):
            try:
                check()
            except Exception as error:
                found[check.name] = repr(error)

table = pa.table({"id": range(20_000), "name": [f"n{i}" for i in range(20_000)]})
with semistream.Relation.build(table, sys.argv[1], key="id", page_size=4096) as relation:
    tuning = tune(relation, "20%", schema=table.schema, algorithms=["tiny", "inlj"])
    alone = tune(relation, "20%", schema=table.schema, algorithms=["tiny"]).best
    join = semistream.create(alone.algorithm, relation, on="id", memory="20%", schema=table.schema, **alone.options)
    print(json.dumps({
        "algorithms": semistream.algorithms(), "modelled": modelled(),
        "checks": len(list(checks("tiny"))), "failed": failed,
        "rates": {found.algorithm: found.rate for found in tuning.predictions},
        "expected": alone.parts, "reserved": join.budget.parts(),
    }))
"""

ON_SPARK = """
import sys
from pathlib import Path
import semistream.spark
from feeding import build_products, feed, price_of

folder = Path(sys.argv[1])
spark = semistream.spark.session("tiny", master="local[2]", memory="1g")
with feed(spark, build_products(folder / "products"), folder / "query", algorithm="tiny") as fed:
    counted = [fed.add(number, 2_000) for number in range(2)]
    fed.check(spark, price_of)
assert all(row["pages_read"] > 0 == row["cache_hits"] for row in counted), counted  # no other join was taken
print("exact", sum(row["rows_in"] for row in counted))
spark.stop()
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has the package as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "mytiny.py").write_text(JOIN)
    (folder / "mytiny_costs.py").write_text(COSTS)
    about = folder / "tiny-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def python(package: Path, *arguments: object) -> str:
    """Run Python where the package is installed; return what it prints."""
    ours = Path(semistream.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (package, ours, TESTS)))},
        cwd=package, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def semistream_command(package: Path, *arguments: object) -> str:
    return python(package, "-c", "from semistream.cli import main; main()", *arguments)


@pytest.fixture(scope="module")
def checked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(python(package, "-c", CHECKED, tmp_path_factory.mktemp("tiny") / "relation"))
    return found


@pytest.mark.long
def test_it_is_one_of_the_joins(checked: dict[str, Any]) -> None:
    assert checked["algorithms"] == [*semistream.algorithms(), "forgetful", "tiny"]
    assert "tiny" not in semistream.algorithms(), "it is installed elsewhere only"


def test_conformance_says_whether_it_is_right(checked: dict[str, Any]) -> None:
    assert checked["failed"]["tiny"] == {}
    assert checked["checks"] > 50
    assert sorted(checked["failed"]["forgetful"]) == ["unique, inner", "unique, left"]


def test_the_tuner_prices_it(checked: dict[str, Any]) -> None:
    assert "tiny" in checked["modelled"]
    assert "forgetful" not in checked["modelled"]
    # it reads one page at a time, INLJ several; nobody has measured it as a whole, which must not be to its advantage
    assert 0 < checked["rates"]["tiny"] <= checked["rates"]["inlj"]
    for part, size in checked["expected"].items():
        assert checked["reserved"][part] == pytest.approx(size, rel=0.01), part


@pytest.mark.long
def test_commands_know_it(package: Path, tmp_path: Path) -> None:
    assert "| `tiny` | one page at a time |" in semistream_command(package, "algorithms", "--markdown")
    size = ("--rows", 5_000, "--batch", 500, "--batches", 2, "--warm-up", 1, "--memory", "400KB")
    measured = semistream_command(
        package, "bench", "joins", "--json", *size, "--only", "tiny", "--dir", tmp_path, "--output", tmp_path
    )
    assert json.loads(measured)["rates"]["tiny"] > 0


@pytest.mark.long
@pytest.mark.spark
def test_a_query_on_spark_uses_it(package: Path, tmp_path: Path) -> None:
    """The workers, who have the package as the driver has it, find it by its name."""
    assert python(package, "-c", ON_SPARK, tmp_path).split()[-2:] == ["exact", "4000"]
