"""The page that writes a join from nothing is true: its two files are a join that passes all conformance checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import semistream
import semistream_lab

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("a join of a page")]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "add-an-algorithm.md").read_text()
JOIN, COSTS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

CHECKED = """
import json, sys
import pyarrow as pa
import semistream
from semistream_lab.conformance.checks import checks

failed, count = {}, 0
for check in checks("recentpages"):
    count += 1
    try:
        check()
    except Exception as error:
        failed[check.name] = repr(error)
table = pa.table({"id": range(20_000), "name": [f"n{i}" for i in range(20_000)]})
with semistream.Relation.build(table, sys.argv[1], key="id", page_size=4096) as relation:
    best = semistream.tune(relation, "40%", schema=table.schema, algorithms=["recentpages"]).best
    join = semistream.create("recentpages", relation, on="id", memory="40%", schema=table.schema)
    least = semistream.joins.find("recentpages").minimum_memory(relation, table.schema, on="id")
    print(json.dumps({"failed": failed, "count": count, "expected": best.parts, "reserved": join.budget.parts(),
                      "rate": best.rate, "least": least}))
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "recentpages.py").write_text(JOIN)
    (folder / "recentpages_costs.py").write_text(COSTS)
    about = folder / "recentpages-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: recentpages\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(
        "[semistream.joins]\nrecentpages = recentpages\n[semistream.costs]\nrecentpages = recentpages_costs\n"
    )
    ours = [Path(package.__file__).parents[1] for package in (semistream, semistream_lab)]
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, folder / "relation"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, *ours)))},
        cwd=folder, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_join_is_short_and_uses_public_names_only() -> None:
    lines = [line for line in JOIN.splitlines() if line.strip()]
    assert len(lines) <= 75
    own = set(re.findall(r"def (_\w+)|self\.(_\w+)(?:\[[^]]*\])?(?:, self\.\w+)* =", JOIN))
    used = set(re.findall(r"self\.(_\w+)", JOIN))
    assert used <= {name for pair in own for name in pair if name}, "a private name that the join does not define"


@pytest.mark.long
def test_it_passes_the_conformance_checks(checked: dict[str, Any]) -> None:
    assert checked["failed"] == {}
    assert checked["count"] > 50


def test_its_model_is_of_the_same_memory(checked: dict[str, Any]) -> None:
    assert checked["rate"] > 0
    assert checked["least"] > 4096
    for part, size in checked["expected"].items():
        assert checked["reserved"][part] == pytest.approx(size, rel=0.01), part
