"""Compiled kernels: the one way this package uses Numba.

`kernel` compiles on first call, keeps the result on disk and releases the GIL, and keeps a function's type
for the type checker. `frozen` gives inputs one type: Numba compiles once more for read-only arrays, and
arrays over Arrow buffers are read-only, so kernels are always handed read-only views of what they only read.

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
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numba import config, njit
from numba.core import cgutils, event, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from semistream.core.first_use import tell_compiling

__all__ = ["copy_bytes", "frozen", "inner_kernel", "kernel"]

Int: TypeAlias = int | np.integer[Any]
"""An integer inside a kernel, where Python's and NumPy's are the same."""

_WITHOUT_REFERENCES: dict[str, Any] = {"_nrt": False}

P = ParamSpec("P")
T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile ``function`` with Numba: cached on disk where there is a place for it, without the GIL."""
    compiled: Callable[P, T]
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package's directory nor the user's cache is writable: compile in each process instead.
        compiled = njit(nogil=True)(function)
    return compiled


def inner_kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function that only kernels call and that allocates nothing.

    A kernel counts a reference for each array it hands on, up and down again, atomically: about 10 ns an array, which
    in a loop is more than most calls do. A function that cannot allocate need not count.
    """
    compiled: Callable[P, T]
    try:
        compiled = njit(cache=True, nogil=True, **_WITHOUT_REFERENCES)(function)
    except RuntimeError:
        compiled = njit(nogil=True, **_WITHOUT_REFERENCES)(function)
    return compiled


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a contiguous read-only view (a copy only if ``array`` is not contiguous)."""
    view: NDArray[Any] = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _copy_bytes(_: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """Inside a kernel: copy ``length`` bytes from ``source[source_at:]`` to ``target[target_at:]``.

    Both are 1-D contiguous uint8 arrays, and the bytes do not overlap; nothing is checked, unless Numba checks bounds
    (``NUMBA_BOUNDSCHECK=1``, with a cache directory of its own: Numba's cache does not know of it). A loop over bytes
    takes three to six times as long: the compiler cannot know that the arrays are apart, and guards every short copy
    against it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = []
        for array, at in ((0, 1), (2, 3)):
            view = context.make_array(signature.args[array])(context, builder, arguments[array])
            if config.BOUNDSCHECK:  # type: ignore[attr-defined]
                _check_bounds(context, builder, view.nitems, arguments[at], arguments[4])
            places.append(builder.gep(view.data, [arguments[at]]))
        cgutils.raw_memcpy(builder, places[0], places[1], arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    for array in (target, source):
        if not isinstance(array, types.Array) or (array.dtype, array.ndim, array.layout) != (types.uint8, 1, "C"):
            raise TypeError(f"copy_bytes moves between contiguous 1-D uint8 arrays, not {array}")
    return types.void(target, types.int64, source, types.int64, types.int64), generate


def _check_bounds(context: Any, builder: Any, items: Any, at: Any, length: Any) -> None:
    """Write code that raises unless ``length`` bytes from ``at`` on are within an array of ``items``."""
    zero = length.type(0)
    beyond = builder.icmp_signed(">", at, builder.sub(items, length))
    negative = builder.or_(builder.icmp_signed("<", at, zero), builder.icmp_signed("<", length, zero))
    with builder.if_then(builder.or_(beyond, negative), likely=False):
        context.call_conv.return_user_exc(builder, IndexError, ("copy_bytes: beyond the end of an array",))


copy_bytes: Any = intrinsic(_copy_bytes)


class _FirstCompiled(event.Listener):
    """Tells those who wait for it that a kernel is compiled: none that is kept on disk counts."""

    def on_start(self, event: event.Event) -> None:
        tell_compiling()

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _FirstCompiled())  # type: ignore[no-untyped-call]
