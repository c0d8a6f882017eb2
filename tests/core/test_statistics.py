"""Statistics."""

from __future__ import annotations

import dataclasses
import json

from semistream.core.statistics import JoinStatistics


def test_ratios_of_nothing_are_zero() -> None:
    stats = JoinStatistics()
    assert stats.hit_ratio == 0.0
    assert stats.service_rate == 0.0


def test_ratios() -> None:
    stats = JoinStatistics(rows_done=200, cache_hits=50, busy_seconds=4.0)
    assert stats.hit_ratio == 0.25
    assert stats.service_rate == 50.0


def test_every_counter_is_in_the_dictionary_and_in_json() -> None:
    stats = JoinStatistics(rows_in=3, io_seconds=0.5)
    values = stats.as_dict()
    assert {field.name for field in dataclasses.fields(JoinStatistics)} < set(values)
    assert (values["rows_in"], values["io_seconds"], values["hit_ratio"]) == (3, 0.5, 0.0)
    assert json.loads(json.dumps(values)) == values
