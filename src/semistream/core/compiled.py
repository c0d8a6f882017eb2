"""Compiled kernels: the one way this package uses Numba.

`kernel` compiles on first call, keeps the result on disk and releases the GIL, and keeps a function's type for the
type checker. `frozen` gives inputs one type: Numba compiles once more for read-only arrays, and arrays over Arrow
buffers are read-only, so kernels are always handed read-only views of what they only read.

Example
-------
>>> import numpy as np
>>> @kernel
... def total(values):
...     result = 0
...     for value in values:
...         result += value
...     return result
>>> int(total(frozen(np.arange(5))))
10
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["frozen", "kernel"]

P = ParamSpec("P")
T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile ``function`` with Numba: cached on disk, without the GIL."""
    compiled: Callable[P, T] = njit(cache=True, nogil=True)(function)
    return compiled


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a contiguous read-only view (a copy only if ``array`` is not contiguous)."""
    view: NDArray[Any] = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
