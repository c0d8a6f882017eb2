"""``bench lookup`` measures what it says: cached calls read nothing, cold calls read everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream_lab.benchmarks.lookup_latency import STATES, LookupSpec, bench_lookup
from semistream_lab.cli.bench.lookup import latency_table


def test_states_of_the_cache(tmp_path: Path) -> None:
    spec = LookupSpec(rows=20_000, memory="400KB", sizes=(1, 50), calls=20, fill=5_000)
    found = bench_lookup(spec, tmp_path)
    assert set(found["latency"]) == set(STATES)
    for size in ("1", "50"):
        cached, warm, cold = (found["latency"][state][size] for state in STATES)
        assert cached["pages_a_call"] == 0
        assert cached["hit_ratio"] == 1
        assert 0 < warm["hit_ratio"] < 1
        assert cold["pages_a_call"] > 0
        for one in (cached, warm, cold):
            assert 0 < one["p50"] <= one["p99"]
            assert one["reserved"] <= 400_000
    assert latency_table(found).row_count == 6


def test_a_call_has_keys() -> None:
    with pytest.raises(ValueError, match="size of a call"):
        LookupSpec(sizes=(0,))
