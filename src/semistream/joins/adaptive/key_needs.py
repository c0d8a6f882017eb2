"""What keys that are looked for will need of ADAPTIVEJOIN's arena, learned from those before."""

from __future__ import annotations

__all__ = ["KeyNeeds", "Mean"]

_TELLING = 512
"""Keys that tell what others need: all before count no more than as many."""
_FALL = 0.1
"""Where rows fit, this part less of the excess over what they needed is reckoned with."""
_CALM = 1.15
"""What is reckoned with where all fits at once is more than before by this factor at most: others may have come."""
_LIKELY = 8.0
"""A key that does not fit counts for so many times the rows of a usual one, if for as many."""


class Mean:
    """A mean of what came last, ``value`` at first.

    Examples
    --------
    >>> rows = Mean(1.0)
    >>> rows.add(3.0, 1)
    >>> rows.value
    2.0
    """

    def __init__(self, value: float) -> None:
        self.value = value
        self._count = 1

    def add(self, mean: float, count: int) -> None:
        """Take in the mean of so many."""
        if count:
            self._count = min(self._count, _TELLING) + count
            self.value += count / self._count * (mean - self.value)


class KeyNeeds:
    """How many keys R lacks, how many rows the others have, and how long those are.

    What is needed is counted in rows of usual length. Where it was not enough, more is reckoned with for a while.
    """

    def __init__(self) -> None:
        self._absent = Mean(0.0)
        self._rows = Mean(1.0)
        self._length = Mean(1.0)
        self._more = self._calm = 1.0

    @property
    def rows(self) -> float:
        """Rows that come for a key, on average; a few, even if R has lacked all."""
        return max(1.0 - self._absent.value, 1.0 / _TELLING) * self._rows.value

    @property
    def need(self) -> float:
        """Rows of usual length that are to be kept free for a key."""
        return self.rows * max(1.0, self._length.value) * self._more

    def came(self, keys: int, absent: int, rows: int, length: float | None) -> None:
        """Learn from keys that were looked for: how many R lacks, the rows of the others, their length if it varies."""
        self._absent.add(absent / keys, keys)
        if keys > absent:
            self._rows.add(rows / (keys - absent), keys - absent)
            if length is not None:
                self._length.add(length, keys - absent)

    def did_not_fit(self, factor: float) -> None:
        """Reckon with so much more."""
        self._more *= factor

    def fitted(self, most: float, *, at_once: bool) -> None:
        """Reckon with less: keys would have fitted with ``most`` times their rows; ``at_once``: at the first go."""
        self._more = max(1.0, min(most, self._more + _FALL * (1.0 - self._more)))
        if at_once:
            self._calm = min(self._more, _CALM * self._calm)

    def did_not_fit_alone(self, rows: int | None) -> None:
        """Learn that it was one key that did not fit, for which others are not to be blamed.

        It has at least so many ``rows``; None: as many as any other.
        """
        self._more = self._calm
        if rows is not None:
            self._rows.add(min(float(rows), _LIKELY * self._rows.value), 1)
