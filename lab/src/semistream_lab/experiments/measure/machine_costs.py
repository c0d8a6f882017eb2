"""Prices of operations and reads: of a machine of 2010 when simulated, else measured on this machine."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semistream.core.machine import describe_machine
from semistream.costs import Constants, load_constants, save_constants
from semistream.costs.basis.constants import DEFAULT
from semistream.tuner.calibration import calibrate
from semistream_lab.experiments.spec import DeviceKind

__all__ = ["constants_of", "pace", "slower"]

_LOOKED_UP = 1 << 20
"""Number of look-ups that `pace` measures."""
_OPERATIONS = ("probe", "emit", "evict", "admit", "append", "record", "buffer", "turn")
_TURN = 10_000.0
"""Nanoseconds of an iteration on the simulated machine, with one descent of the index.

Assumed: about a system call and some misses of the processor's cache in 2010.
"""


def constants_of(device: DeviceKind, data: Path) -> Constants:
    """Return the constants for the models.

    On a real device they are measured before the first point, on the disk that holds ``data``, and stored there. All
    points of a run, and of a run that continues it, are compared with the same model.
    """
    if device == "simulated":
        return dataclasses.replace(load_constants(DEFAULT), turn=_TURN)
    kept = data / "constants.json"
    if not kept.exists():
        data.mkdir(parents=True, exist_ok=True)
        save_constants(calibrate("this-machine", directory=data, algorithms=()), kept, machine=describe_machine())
    return load_constants(kept)


def slower(constants: Constants, times: float) -> Constants:
    """Return the constants of a machine whose operations take ``times`` as long.

    >>> slower(load_constants(DEFAULT), 20.0).probe
    500.0
    """
    return dataclasses.replace(constants, **{name: getattr(constants, name) * times for name in _OPERATIONS})


def pace() -> float:
    """Return the seconds that a fixed piece of work takes now: random look-ups in some megabytes.

    A shared machine is not always as fast as when its constants were measured. The pace is recorded with every point
    and shows how much of the difference between model and measurement is due to the machine.
    """
    values, places = _work()
    found = []
    for _ in range(3):
        began = time.perf_counter()
        np.take(values, places).sum()
        found.append(time.perf_counter() - began)
    return min(found)


@functools.cache
def _work() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    drawn = np.random.default_rng(1)
    return np.arange(4 * _LOOKED_UP), drawn.integers(0, 4 * _LOOKED_UP, _LOOKED_UP)
