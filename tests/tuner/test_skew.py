"""The skew of a sample: the exponent that made it, its error, its fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import KeyColumnError
from semistream.relation.synthetic import synthetic_relation
from semistream.tuner import SkewError, estimate_skew, skew_of
from semistream.workloads import ZipfKeys

KEYS = 1_000_000


@pytest.mark.sampled(4)
@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.6, 0.9, 1.0, 1.2, 1.5])
@pytest.mark.parametrize("sample", [5_000, 100_000])
@pytest.mark.slow
def test_the_exponent_is_found(exponent, sample):
    skew = estimate_skew(ZipfKeys(KEYS, exponent, "random", seed=7).keys(0, sample), KEYS)
    # a small sample of a stream with little skew hardly has a key twice
    assert skew.exponent == pytest.approx(exponent, abs=max(0.01, 5 * skew.error))
    assert skew.error < (0.02 if sample == 100_000 and exponent >= 0.6 else 0.5)
    assert skew.fits
    assert skew.sample == sample


@pytest.mark.slow
def test_the_error_shrinks_with_the_sample():
    keys = ZipfKeys(KEYS, 1.0, "random", seed=7)
    few, many = (estimate_skew(keys.keys(0, count), KEYS) for count in (2_000, 200_000))
    assert many.error < few.error / 4
    assert many.distance < 0.02


def test_a_stream_that_is_not_zipf_does_not_fit():
    # nine tenths of the stream have one of a hundred keys, all alike
    draw = np.random.default_rng(1)
    keys = np.where(draw.random(100_000) < 0.9, draw.integers(0, 100, 100_000), draw.integers(0, KEYS, 100_000))
    skew = estimate_skew(keys, KEYS)
    assert not skew.fits
    assert skew.distance > 0.1


@pytest.mark.parametrize("exponent", [0.7, 1.0])
@pytest.mark.parametrize("shape", ["random", "noperm"])
def test_it_is_seen_where_frequent_keys_lie(exponent, shape):
    relation = synthetic_relation(300_000)
    batch = pa.record_batch({"id": ZipfKeys(300_000, exponent, shape, seed=2).keys(0, 30_000)})
    skew = skew_of(relation, [batch], "id")
    assert skew.shape == shape
    assert skew.exponent == pytest.approx(exponent, abs=0.05)


def test_null_keys_do_not_count():
    relation = synthetic_relation(100_000)
    keys = ZipfKeys(100_000, 1.0, "random", seed=2).keys(0, 20_000)
    with_nulls = pa.record_batch({"id": pa.array(keys, mask=np.arange(20_000) % 2 == 0)})
    assert skew_of(relation, [with_nulls], "id").sample == 10_000


def test_a_sample_without_the_key_is_refused():
    with pytest.raises(KeyColumnError, match="id"):
        skew_of(synthetic_relation(1000), [pa.record_batch({"other": [1, 2, 3]})], "id")


@pytest.mark.parametrize("batches", [[], [pa.record_batch({"id": np.arange(99)})]])
def test_too_small_a_sample_is_refused(batches):
    with pytest.raises(SkewError, match="at least 100"):
        skew_of(synthetic_relation(1000), batches, "id")
