"""What a star takes: signatures that are written out, and one budget that is split among its relations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import semistream
from semistream.core.errors import BudgetTooSmallError, UnsupportedJoinError
from semistream.spark.joining.held.image import RESULT_ROOM
from semistream.spark.joining.join_plan import plan_join
from semistream.spark.joining.star import star_budget
from semistream.spark.joining.star.star_budget import Need, need_of, split

MB = 1_000_000


def test_signatures_are_written_out_and_agree() -> None:
    planned = inspect.signature(plan_join).parameters
    joined = inspect.signature(semistream.join).parameters
    assert {name: (part.kind, part.default) for name, part in joined.items()} == {
        name: (part.kind, part.default) for name, part in planned.items()
    }
    dimension = inspect.signature(semistream.dimension).parameters
    assert list(dimension) == [name for name in planned if name != "stream"]
    differing = [name for name, part in dimension.items() if part.default != planned[name].default]
    assert differing == ["memory"]


def need(name: str, whole: int) -> Need:
    return Need(Path(name), whole, whole)


def test_small_relations_are_held_first_and_the_rest_goes_to_the_large_one() -> None:
    needs = [need("products", 900 * MB), need("days", MB), need("customers", 20 * MB)]
    assert split(100 * MB, needs) == {Path("days"): MB, Path("customers"): 20 * MB, Path("products"): 79 * MB}
    assert split(30 * MB, [need("days", MB), need("customers", 20 * MB)])[Path("customers")] == 20 * MB
    # one that would leave less than half for larger ones is large, too
    found = split(30 * MB, needs, lambda _: lambda memory: float(memory))
    assert found[Path("days")] == MB
    assert sum(found.values()) <= 30 * MB
    assert min(found.values()) > 0


def test_memory_goes_to_where_it_is_worth_most() -> None:
    def rate_of(path: object) -> Callable[[int], float]:
        def rate(memory: int) -> float:
            if str(path) == "needy" and memory < 20 * MB:
                raise BudgetTooSmallError("too small", 20 * MB)
            return memory / (1 if str(path) == "flat" else 10)

        return rate

    found = split(100 * MB, [need("flat", 900 * MB), need("steep", 900 * MB)], rate_of)
    assert found[Path("steep")] > 2 * found[Path("flat")]
    found = split(100 * MB, [need("needy", 900 * MB), need("steep", 900 * MB)], rate_of)
    assert found[Path("needy")] >= 20 * MB


def test_a_share_never_refuses_small_relations(tmp_path: Path) -> None:
    for name in ("stores", "days"):
        table = pa.table({"id": range(500), "name": [f"{name} {i}" for i in range(500)]})
        semistream.Relation.build(table, tmp_path / name, key="id").close()
    dimensions = [semistream.dimension(tmp_path / name, on="id") for name in ("stores", "days", "days")]
    shares = star_budget.shares("5%", [one.use for one in dimensions])
    assert shares == {one.place: need_of(one.place).whole + RESULT_ROOM for one in dimensions}


def test_a_relation_under_two_keys_has_one_share(tmp_path: Path) -> None:
    table = pa.table({"id": range(5000), "name": [f"user {i}" for i in range(5000)]})
    semistream.Relation.build(table, tmp_path / "users", key="id").close()
    several = pa.table({"id": [1, 1, 2], "name": ["a", "b", "c"]})
    semistream.Relation.build(several, tmp_path / "names", key="id").close()

    def shares(memory: int, name: str = "users", **second: Any) -> dict[str, int]:
        dimensions = [
            semistream.dimension(tmp_path / name, on="buyer"),
            semistream.dimension(tmp_path / name, on="seller", **second),
        ]  # fmt: skip
        return {
            place.name: nbytes for place, nbytes in star_budget.shares(memory, [one.use for one in dimensions]).items()
        }

    assert need_of((tmp_path / "users").absolute()).whole < MB
    assert shares(MB) == {"users": need_of((tmp_path / "users").absolute()).whole}, "both use one copy"
    assert shares(100_000) == {"users": 50_000}, "each has a cache of its own"
    by_page: list[dict[str, Any]] = [
        {"hold": False}, {"warm": False}, {"algorithm": "inlj"}, {"on_missing": "park", "park_for": 1}, {"window": 9},
    ]  # fmt: skip
    for second in by_page:
        assert shares(2 * MB, **second)["users"] == need_of((tmp_path / "users").absolute()).whole, second
        assert shares(MB, **second)["users"] == MB // 2, second
    assert shares(MB, "names")["names"] == need_of((tmp_path / "names").absolute()).whole, "several rows per key"


def test_something_else_than_a_dimension_is_refused() -> None:
    with pytest.raises(UnsupportedJoinError, match=r"semistream.dimension\(relation, on=…\), not str"):
        semistream.enrich(None, ["products"])  # type: ignore[arg-type,list-item]
