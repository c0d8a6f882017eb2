"""System calls for compiled code: reads, advice, and Linux's native asynchronous I/O.

The C library's functions are called by symbol. Unlike an address, a symbol can be stored in Numba's cache on disk.
"""

from __future__ import annotations

import errno
import platform
import sys
from typing import TYPE_CHECKING, Any

from numba import types

__all__ = [
    "EINTR", "EIO", "HAS_QUEUE", "IO_DESTROY", "IO_GETEVENTS", "IO_SETUP", "IO_SUBMIT", "WILL_NEED",
    "advise", "error_place", "pread", "system",
]  # fmt: skip

# The numbers of these four calls depend on the architecture. On other architectures and systems they are never called.
_X86 = platform.machine() in ("x86_64", "AMD64")
HAS_QUEUE = sys.platform == "linux" and sys.byteorder == "little" and (_X86 or platform.machine() == "aarch64")
IO_SETUP, IO_DESTROY, IO_GETEVENTS, IO_SUBMIT = (206, 207, 208, 209) if _X86 else (0, 1, 4, 2)

WILL_NEED = 3
EINTR, EIO = errno.EINTR, errno.EIO
if TYPE_CHECKING:  # functions for the type checker, typed symbols for Numba

    def pread(file: int, address: int, size: int, offset: int) -> int:
        """Read into memory at an address; return the bytes read, or -1."""
        ...

    def advise(file: int, offset: int, size: int, advice: int) -> int:
        """Advise the system of what will be read."""
        ...

    def system(number: int, a: int, b: int, c: int, d: int, e: int) -> int:
        """Make the system call of that number."""
        ...

    def error_place() -> Any:
        """Return where this thread's error number is."""
        ...
else:
    pread = types.ExternalFunction("pread", types.int64(types.int32, types.uint64, types.uint64, types.int64))
    advise = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
    system = types.ExternalFunction("syscall", types.int64(*[types.int64] * 6))
    error_place = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())
