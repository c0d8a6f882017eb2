"""What packing brings: predictions for a packed relation, for the same rows unpacked, and for their plain twin."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from packed_builds import builds_as_released
from semistream.cli import app
from semistream.costs import load_constants
from semistream.relation.relation import Relation
from semistream.tuner import describe, packing_gain, tune
from semistream.tuner.packing_gain import plain_pages, unpacked

ROWS = 40_000
MEMORY = 600_000


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relation, Relation]]:
    """Return the same rows packed and plain."""
    root = tmp_path_factory.mktemp("twins")
    rows = pa.table({
        "id": range(ROWS), "name": [f"a product of brand {i % 50}" for i in range(ROWS)],
        "price": pa.array([100 * (i % 777) for i in range(ROWS)], pa.int64()),
    })  # fmt: skip
    with builds_as_released():
        packed = Relation.build(rows, root / "packed", "id")
    with packed, Relation.build(rows, root / "plain", "id", encoding="plain") as plain:
        assert packed.packing is not None
        assert plain.packing is None
        yield packed, plain


def test_the_setting_has_the_bytes_of_packed_rows(twins: tuple[Relation, Relation]) -> None:
    packed, plain = (describe(relation, None) for relation in twins)
    assert (packed.pages, plain.pages) == tuple(relation.page_count for relation in twins)
    saved = (twins[1].nbytes - twins[0].nbytes) / ROWS
    assert plain.cached_bytes - packed.cached_bytes == pytest.approx(saved, abs=8)  # rows are kept in words of 8 bytes
    assert twins[0].packing is not None
    assert packed.index_bytes > 9 * packed.pages + twins[0].packing.nbytes // 2


def test_unpacked_it_is_like_its_plain_twin(twins: tuple[Relation, Relation]) -> None:
    packed, plain = twins
    found, twin = unpacked(packed, describe(packed, None)), describe(plain, None)
    assert found is not None
    assert found.pages == pytest.approx(twin.pages, rel=0.02)
    assert found.index_bytes == pytest.approx(twin.index_bytes, rel=0.05)
    assert found.cached_bytes == pytest.approx(twin.cached_bytes, abs=8)
    assert found.page_rows == twin.page_rows
    assert plain_pages(plain) is None
    assert unpacked(plain, twin) is None


def test_rates_of_both(twins: tuple[Relation, Relation]) -> None:
    packed, plain = twins
    costs = load_constants("disk-2010")
    tuning = tune(packed, MEMORY, algorithms=["cmeshjoin"], constants=costs)
    gain = packing_gain(packed, tuning.setting, tuning.best, MEMORY)
    assert gain is not None
    assert (gain.algorithm, gain.rate, gain.stored_bytes) == ("cmeshjoin", tuning.best.rate, packed.nbytes)
    assert gain.plain_bytes == pytest.approx(plain.nbytes, rel=0.02)
    twin = tune(plain, MEMORY, algorithms=["cmeshjoin"], constants=costs).best.rate
    assert gain.plain_rate == pytest.approx(twin, rel=0.05)
    assert gain.rate > 1.3 * twin
    assert packing_gain(plain, tuning.setting, tuning.best, MEMORY) is None


def test_memory_that_would_not_be_enough_for_unpacked_rows(twins: tuple[Relation, Relation]) -> None:
    packed, _ = twins
    tuning = tune(packed, MEMORY, algorithms=["cmeshjoin"], constants=load_constants("disk-2010"))
    gain = packing_gain(packed, tuning.setting, tuning.best, 1000)
    assert gain is not None
    assert gain.plain_rate is None


def test_on_the_command_line(twins: tuple[Relation, Relation]) -> None:
    for relation, share in ((twins[0], 0.6), (twins[1], None)):
        arguments = ["tune", str(relation.path), "--memory", str(MEMORY), "-a", "cmeshjoin", "--constants", "disk-2010"]
        found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
        shown = CliRunner().invoke(app, arguments).stdout
        if share is None:
            assert found["packing"] is None
            assert "unpacked" not in shown
            continue
        packing = found["packing"]
        assert packing["stored_bytes"] < share * packing["plain_bytes"]
        assert packing["rate"] > packing["plain_rate"] > 0
        assert "packed" in shown
        assert "unpacked; cmeshjoin" in " ".join(shown.split())
        assert "tuples/s instead of" in " ".join(shown.split())
