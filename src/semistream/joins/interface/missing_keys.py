"""Which keys of the stream R does not have, the most frequent of them, in a bounded number of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

__all__ = ["MissingKeys"]

_KEPT = 256
_LONGEST = 60


class MissingKeys:
    """Counts keys without a partner, and keeps the ``kept`` most frequent.

    A count is never too high. It may be too low: a key is forgotten when others are more frequent, and begins again.

    >>> missing = MissingKeys(kept=2)
    >>> missing.add(pa.record_batch({"id": [7, 7, 8, None, 9, 9, 9]}), ["id"])
    >>> missing.add_counts({"7": 1})
    >>> missing.most(), len(missing)
    ({'7': 3, '9': 3}, 2)
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, batch: pa.RecordBatch, on: Sequence[str]) -> None:
        """Count the keys of rows; a key with a NULL in it is none."""
        keys = pa.table([batch.column(name) for name in on], names=[f"{number}" for number in range(len(on))])
        found = keys.drop_null().group_by(keys.column_names, use_threads=False).aggregate([([], "count_all")])
        counts = found.column("count_all").to_numpy()
        if counts.size > self._kept:  # texts are made of few
            top = np.argpartition(counts, counts.size - self._kept)[-self._kept :]
            found, counts = found.take(pa.array(top)), counts[top]
        columns = [found.column(name).to_pylist() for name in keys.column_names]
        texts = (", ".join(map(_text, key)) for key in zip(*columns, strict=True))
        self._merge(zip(texts, counts.tolist(), strict=True))

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add what others have counted."""
        self._merge(counts.items())

    def most(self, count: int = _KEPT) -> dict[str, int]:
        """Return the most frequent keys as text, and how often each was missing at least; the most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:count])

    def _merge(self, counts: Iterable[tuple[str, int]]) -> None:
        for key, count in counts:
            self._counts[key] = self._counts.get(key, 0) + count
        if len(self._counts) > self._kept:
            self._counts = self.most(self._kept)


def _text(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
