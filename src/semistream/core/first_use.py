"""Who is to be told when kernels are compiled, which makes a first use take long; without importing the compiler."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["compiling", "tell_compiling"]

compiling: list[Callable[[], None]] = []
"""Called once each, when the first kernel is about to be compiled."""


def tell_compiling() -> None:
    """Call all, and forget them.

    >>> compiling.append(lambda: print("a moment"))
    >>> tell_compiling(), tell_compiling()
    a moment
    (None, None)
    """
    while compiling:
        compiling.pop()()
