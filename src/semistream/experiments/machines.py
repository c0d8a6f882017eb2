"""What operations and reads cost on the machine of a run: that of 2010 when simulated, else this one, measured."""

from __future__ import annotations

from pathlib import Path

from semistream.core.machine import describe_machine
from semistream.experiments.spec import DeviceKind
from semistream.joins.costs import Constants, load_constants, save_constants
from semistream.joins.costs.constants import DEFAULT
from semistream.tuner.calibration import calibrate

__all__ = ["constants_of"]


def constants_of(device: DeviceKind, data: Path) -> Constants:
    """Return the constants that models are given.

    On a real device they are measured before the first point, reads on the disk that ``data`` is on, and kept there:
    all points of a run, and of the one that goes on with it, are compared with the same model.
    """
    if device == "simulated":
        return load_constants(DEFAULT)
    kept = data / "constants.json"
    if not kept.exists():
        data.mkdir(parents=True, exist_ok=True)
        save_constants(calibrate("this-machine", directory=data), kept, machine=describe_machine())
    return load_constants(kept)
