"""Type aliases of the arrays used throughout the package."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Bytes", "Floats", "Halves", "Ints", "Pairs", "Scores", "Slots"]

Ints: TypeAlias = NDArray[np.int64]
"""Keys, page ids, positions."""
Slots: TypeAlias = NDArray[np.int32]
"""Positions in structures of fewer than two billion entries."""
Bytes: TypeAlias = NDArray[np.uint8]
"""Frames and encoded rows."""
Halves: TypeAlias = NDArray[np.uint32]
Pairs: TypeAlias = NDArray[np.uint16]
"""Two small numbers in one."""
Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = NDArray[np.float32]
"""Utilities and frequencies in large numbers."""
Bools: TypeAlias = NDArray[np.bool_]
