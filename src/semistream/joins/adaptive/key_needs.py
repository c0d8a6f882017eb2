"""How much of ADAPTIVEJOIN's arena unknown keys will need, learned from earlier keys."""

from __future__ import annotations

__all__ = ["KeyNeeds", "Mean"]

_TELLING = 512
"""Keys: maximum weight of all earlier keys together in a mean."""
_FALL = 0.1
"""After rows fitted, the surplus factor falls by this part of its excess over 1."""
_CALM = 1.15
"""Windows that fit at the first attempt set a remembered surplus factor. It grows at most by this factor per window,
because a larger surplus may be due to other keys."""
_LIKELY = 8.0
"""Maximum weight of a key that does not fit, in multiples of the mean rows per key."""


class Mean:
    """A mean of recent values, initially ``value``.

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
        """Add the mean of ``count`` values."""
        if count:
            self._count = min(self._count, _TELLING) + count
            self.value += count / self._count * (mean - self.value)


class KeyNeeds:
    """Means of the share of keys that R does not have, of the rows of other keys, and of their lengths.

    The unit of a need is a row of mean length. If the estimate was too low, a surplus is added for a while.
    """

    def __init__(self) -> None:
        self._absent = Mean(0.0)
        self._rows = Mean(1.0)
        self._length = Mean(1.0)
        self._more = self._calm = 1.0

    @property
    def rows(self) -> float:
        """Mean rows per key; slightly more than zero even if R had none of the keys."""
        return max(1.0 - self._absent.value, 1.0 / _TELLING) * self._rows.value

    @property
    def absent(self) -> float:
        """Mean share of keys that R does not have."""
        return self._absent.value

    @property
    def need(self) -> float:
        """Rows of mean length to keep free per key."""
        return self.rows * max(1.0, self._length.value) * self._more

    def came(self, keys: int, absent: int, rows: int, length: float | None) -> None:
        """Learn from keys that were read: how many are absent, rows of the others, and their length if it varies."""
        self._absent.add(absent / keys, keys)
        if keys > absent:
            self._rows.add(rows / (keys - absent), keys - absent)
            if length is not None:
                self._length.add(length, keys - absent)

    def did_not_fit(self, factor: float) -> None:
        """Multiply the surplus by a factor."""
        self._more *= factor

    def fitted(self, most: float, *, at_once: bool) -> None:
        """Lower the surplus after keys fitted, to ``most`` at most; ``at_once`` if they fitted at the first attempt.

        ``most``: the keys would have fitted with this many times their rows.
        """
        self._more = max(1.0, min(most, self._more + _FALL * (1.0 - self._more)))
        if at_once:
            self._calm = min(self._more, _CALM * self._calm)

    def did_not_fit_alone(self, rows: int | None) -> None:
        """Learn that a single key did not fit, which says nothing about other keys.

        It has at least ``rows`` rows; None means the same number as other keys.
        """
        self._more = self._calm
        if rows is not None:
            self._rows.add(min(float(rows), _LIKELY * self._rows.value), 1)
