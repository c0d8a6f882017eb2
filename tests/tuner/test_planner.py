"""The capacity planner: what must hold of any plan, whatever the models say."""

from __future__ import annotations

import pytest

from semistream.core.errors import BudgetTooSmallError
from semistream.costs import load_constants
from semistream.relation.synthetic import synthetic_relation
from semistream.tuner import PlanError, plan, tune
from semistream.tuner.cluster_plan import Machines
from semistream.tuner.skew import SkewError

pytestmark = pytest.mark.slow

DISK = load_constants("disk-2010")
GB = 10**9


def planned(rate: float, memory: int = 4 * GB, rows: int = 400_000_000, **options):
    return plan(rows, 120, rate, memory=memory, constants=DISK, algorithms=["cmeshjoin", "hybridjoin"], **options)


@pytest.mark.long
def test_a_plan_serves_what_was_asked_for_and_no_more_than_that_needs():
    found = planned(500_000)
    assert found.rate >= 500_000
    assert found.shards > 1
    assert found.memory <= 4 * GB
    assert planned(1.02 * found.rate).shards > found.shards
    with pytest.raises(
        PlanError, match=f"{found.shards} shards need {found.shards} machines of 1 cores, but there are 1"
    ):
        Machines(1, 1).advice(found)


@pytest.mark.long
def test_more_rate_never_needs_fewer_shards():
    shards = [planned(rate).shards for rate in (1_000, 100_000, 300_000, 700_000, 1_500_000, 3_000_000)]
    assert shards == sorted(shards)
    assert shards[0] == 1


def test_more_memory_never_needs_more_shards():
    shards = [planned(600_000, memory=memory).shards for memory in (2 * GB, 4 * GB, 8 * GB, 16 * GB)]
    assert shards == sorted(shards, reverse=True)


@pytest.mark.long
def test_more_skew_never_needs_more_shards():
    found = [planned(600_000, exponent=exponent) for exponent in (0.4, 0.8, 1.0)]
    shards = [one.shards for one in found]
    assert shards == sorted(shards, reverse=True)
    ratios = [one.prediction.hit_ratio for one in found]
    assert ratios == sorted(ratios)


def test_the_most_frequent_key_is_not_divided():
    found = planned(2_000_000, exponent=1.3, rows=10_000_000)
    assert found.busiest_share > 0.25
    if found.shards > 1:
        assert found.rate < found.shards * found.prediction.rate


def test_memory_of_each_shard_may_be_given():
    one = planned(600_000, memory=GB, per_shard=True)
    assert one.memory == one.shards * GB


def test_all_of_it_is_json():
    import json

    found = json.loads(json.dumps(planned(100_000).as_dict()))
    assert found["shards"] >= 1
    assert found["rate"] >= 100_000
    assert 0 <= found["hit_ratio"] <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 0}, "above zero"),
        ({"rate": 1, "memory": 0}, "at least one byte"),
    ],
)
def test_nonsense_is_refused(change, message):
    with pytest.raises(PlanError, match=message):
        planned(**change)


def test_an_exponent_that_no_stream_has_is_refused_as_the_tuner_refuses_it():
    with pytest.raises(SkewError, match="from 0 to 4, not -1"):
        planned(1, exponent=-1)
    with pytest.raises(SkewError, match="from 0 to 4, not 99"):
        tune(synthetic_relation(1_000), "10%", exponent=99)


@pytest.mark.long
def test_what_is_out_of_reach_says_how_far_one_gets():
    with pytest.raises(PlanError, match=r"the maximum is .*/s"):
        planned(1e12, memory=GB // 2)


def test_memory_for_no_shard_at_all_is_refused():
    with pytest.raises(BudgetTooSmallError):
        planned(1000, memory=10_000)


def test_many_shards_may_have_fewer_rows_than_a_key_has() -> None:
    with pytest.raises(BudgetTooSmallError, match="memory of 20,000 B is too small"):
        planned(1.0, memory=20_000, rows=1_000_000, rows_per_key=100.0)


def test_memory_that_r_cannot_use_is_not_planned():
    """Models of tuples that wait take minutes with three times R, and say the same as with all of R."""
    size = 2_000_000 * 120
    wide = [plan(2_000_000, 120, 1_000, memory=share * size, algorithms=["meshjoin"], constants=DISK)
            for share in (3, 30)]  # fmt: skip
    assert wide[0].memory_per_shard == wide[1].memory_per_shard < 2 * size
    assert wide[0].prediction == wide[1].prediction
    exact = plan(2_000_000, 120, 1_000, memory=size, algorithms=["meshjoin"], constants=DISK)
    assert exact.memory_per_shard == size
