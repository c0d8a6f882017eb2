"""The LRU before the stores, against one of Python's own."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from semistream_lab.benchmarks.peers.row_cache import OVERHEAD, RowCache


@pytest.mark.parametrize("capacity", [1, 7, 100])
def test_it_holds_what_was_used_last(capacity: int) -> None:
    """Batches of keys; a batch may be larger than the cache, and within one the last tuple of a key counts."""
    generator = np.random.default_rng(capacity)
    cache = RowCache(capacity * (8 + OVERHEAD), np.int64)
    assert cache.capacity == capacity
    model: OrderedDict[int, int] = OrderedDict()
    clock = 0
    for _ in range(300):
        batch = generator.zipf(1.3, generator.integers(1, 60)) % 500
        keys, number = np.unique(batch, return_inverse=True)
        now = np.empty(keys.size, np.int64)
        now[number] = np.arange(clock, clock + batch.size)
        clock += batch.size
        places = cache.find(keys, now)
        assert (places >= 0).tolist() == [int(key) in model for key in keys]
        assert cache.rows[places[places >= 0]].tolist() == (keys[places >= 0] * 3).tolist()
        away = places < 0
        cache.keep(keys[away], keys[away] * 3, now[away])
        for at in np.argsort(now):
            key = int(keys[at])
            if not away[at]:
                model.move_to_end(key)
        for at in np.argsort(now):
            if away[at]:
                model[int(keys[at])] = int(now[at])
        order = dict(zip(keys.tolist(), now.tolist(), strict=True))
        model = OrderedDict(sorted(((k, order.get(k, t)) for k, t in model.items()), key=lambda item: item[1]))
        while len(model) > capacity:
            _evict(model, set(keys[away].tolist()), capacity)
        assert cache.count == len(model)


def _evict(model: OrderedDict[int, int], new: set[int], capacity: int) -> None:
    """Of more new keys than fit, the newest stay; else the oldest of the others go."""
    others = [key for key in model if key not in new]
    del model[others[0] if others else next(iter(model))]
