"""Compiled kernels: the only way this package uses Numba.

`kernel` compiles on first call, caches the result on disk and releases the GIL. It keeps a function's type for the type
checker. `frozen` gives inputs one type: Numba compiles separate code for read-only arrays, and arrays over Arrow
buffers are read-only. So kernels always get read-only views of arrays that they only read.

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

import contextlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numba import config, njit
from numba.core import cgutils, event, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from semistream.core.kernels.first_use import Compiling
from semistream.core.kernels.kernel_cache import KernelCache, compiling_lock

__all__ = ["copy_bytes", "frozen", "inner_kernel", "kernel"]

Int: TypeAlias = int | np.integer[Any]
"""An integer inside a kernel, where Python's and NumPy's integers are the same."""

_FLAGS: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True}
_WITHOUT_REFERENCES: dict[str, Any] = {**_FLAGS, "_nrt": False}

P = ParamSpec("P")
T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile ``function`` with Numba on its first call; cached on disk (`kernel_cache`), without the GIL."""
    compiled: Callable[P, T] = _kept(njit(**_FLAGS)(function))
    return compiled


def inner_kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function that only kernels call and that allocates nothing.

    A kernel counts references of each array that it passes on, up and down, atomically. This costs about 10 ns per
    array, which in a loop is more than most calls cost. A function that cannot allocate does not need to count.
    """
    compiled: Callable[P, T] = _kept(njit(**_WITHOUT_REFERENCES)(function))
    return compiled


def _kept(compiled: Any) -> Any:
    """Cache machine code on disk. If there is no place for it, each process compiles for itself."""
    with contextlib.suppress(RuntimeError):
        compiled._cache = KernelCache(compiled.py_func)  # type: ignore[no-untyped-call]
    return compiled


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a contiguous read-only view (a copy only if ``array`` is not contiguous)."""
    view: NDArray[Any] = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _copy_bytes(_: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """Inside a kernel: copy ``length`` bytes from ``source[source_at:]`` to ``target[target_at:]``.

    Both are 1-D contiguous uint8 arrays, and the bytes do not overlap. Nothing is checked, unless Numba checks bounds
    (``NUMBA_BOUNDSCHECK=1``, with its own cache directory, because Numba's cache ignores this setting). A loop over
    bytes takes three to six times as long: the compiler cannot know that the arrays do not overlap, and guards every
    short copy.
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
    """Generate code that raises unless ``length`` bytes from ``at`` on are within an array of ``items``."""
    zero = length.type(0)
    beyond = builder.icmp_signed(">", at, builder.sub(items, length))
    negative = builder.or_(builder.icmp_signed("<", at, zero), builder.icmp_signed("<", length, zero))
    with builder.if_then(builder.or_(beyond, negative), likely=False):
        context.call_conv.return_user_exc(builder, IndexError, ("copy_bytes: beyond the end of an array",))


copy_bytes: Any = intrinsic(_copy_bytes)


class _CompileEvents(event.Listener):
    """Observes when kernels are compiled; kernels that are loaded from disk do not count."""

    def __init__(self) -> None:
        self._compiling = Compiling()

    def on_start(self, event: event.Event) -> None:
        self._compiling.begin()

    def on_end(self, event: event.Event) -> None:
        self._compiling.end()
        failed = event._exc_details is not None  # `is_failed` is inverted up to Numba 0.68
        if failed and isinstance(event.data["dispatcher"]._cache, KernelCache):
            compiling_lock.leave()  # nothing will be saved


event.register("numba:compile", _CompileEvents())  # type: ignore[no-untyped-call]
