"""Costs of operations on a machine and of reads on a device, which all cost models share.

Constants have a name and are stored in small JSON files. The package includes constants of a disk of 2010. Constants
that ``semistream tune --calibrate`` measures are stored in the user's data directory and used by their name.

Example
-------
>>> constants = load_constants("disk-2010")
>>> constants.name, constants.seek_seconds
('disk-2010', 0.0085)
>>> fast = dataclasses.replace(constants, name="fast", seek_seconds=0.0001)
>>> fast.random_read_seconds(8192) < constants.random_read_seconds(8192)
True
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from semistream.core.errors import SemistreamError
from semistream.core.paths import user_data
from semistream.relation.devices.device import DeviceProfile

__all__ = [
    "DEFAULT",
    "MEASURED",
    "Constants",
    "ConstantsError",
    "constants_directory",
    "load_constants",
    "save_constants",
]

DEFAULT = "disk-2010"
"""Name of the package's constants: a disk of 2010, and a CPU that was measured once."""
MEASURED = "xeon-2026"
"""Name of the constants for real devices that were not calibrated: whole joins, measured on two cores of a Xeon."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ConstantsError(SemistreamError, ValueError):
    """Constants that do not exist, or are invalid."""


@dataclass(frozen=True)
class Constants:
    """Costs of operations in nanoseconds, and of reads in seconds.

    ==================  ==========  =========================================================================
    field               symbol      what
    ==================  ==========  =========================================================================
    probe               ``c_H``     look one key up in a hash table
    emit                ``c_O``     produce one result row
    evict               ``c_E``     remove one stream tuple from hash table and queue
    admit               ``c_S``     read one stream tuple from the stream buffer
    append              ``c_A``     put one stream tuple into hash table and queue
    record              ``c_F``     record one frequency
    buffer              ``c_AI``    put one stream tuple into the intermediate buffer
    seek_seconds        ``S``       start of a single read
    queued_seek_seconds             start of each read if many are in flight
    transfer_seconds    ``T``       transfer of a page of ``page_bytes``
    turn                ``c_T``     rest of an iteration of the loop; 0 in the papers, 10 µs in experiments
    processor                       by algorithm: measured cost of its operations, relative to these costs
    ==================  ==========  =========================================================================

    The costs of single operations do not include what a join does around them. On a disk that seeks this is negligible.
    On a fast device it is most of the time, so ``processor`` has the factors of joins that were measured as a whole.
    """

    name: str
    probe: float
    emit: float
    evict: float
    admit: float
    append: float
    record: float
    buffer: float
    seek_seconds: float
    queued_seek_seconds: float
    transfer_seconds: float
    page_bytes: int = 8192
    turn: float = 0.0
    processor: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        values = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        values = [(name, value) for name, value in values if name not in ("name", "processor")]
        for name, value in values + [(f"processor {algorithm}", factor) for algorithm, factor in self.processor]:
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConstantsError(f"{name} of constants {self.name!r} must be zero or more, not {value!r}")
        if self.transfer_seconds <= 0 or self.page_bytes <= 0:
            raise ConstantsError(f"constants {self.name!r}: transfer_seconds and page_bytes must be above zero")

    def transfer(self, page_bytes: int) -> float:
        """Return ``T`` for pages of another size."""
        return self.transfer_seconds * page_bytes / self.page_bytes

    def random_read_seconds(self, page_bytes: int) -> float:
        """Return ``S + T``: the time of a single page read."""
        return self.seek_seconds + self.transfer(page_bytes)

    def factor(self, algorithm: str) -> float:
        """Return the measured cost of an algorithm's operations, relative to these costs.

        If only other algorithms were measured, return their largest factor, so that an unmeasured one does not look
        better.
        """
        known = dict(self.processor)
        return known.get(algorithm, max(known.values(), default=1.0))

    def on(self, profile: DeviceProfile, page_bytes: int, name: str | None = None) -> Constants:
        """Return these costs of operations, with the read costs of a device."""
        return dataclasses.replace(
            self,
            name=self.name if name is None else name,
            seek_seconds=profile.seek_seconds,
            queued_seek_seconds=min(profile.seek_seconds, profile.queued_seek_seconds),
            transfer_seconds=profile.transfer_seconds,
            page_bytes=page_bytes,
        )


def constants_directory() -> Path:
    """Return the directory of measured constants: ``$SEMISTREAM_DATA`` or the user's data directory."""
    return user_data() / "constants"


def load_constants(name: str | Path | None = None) -> Constants:
    """Return constants by name, or from a file if ``name`` is a path to one.

    Without a name: the constants ``local`` that were measured on this machine, if they exist, else the package's.
    """
    if name is None:
        local = constants_directory() / "local.json"
        return _read(local) if local.exists() else load_constants(DEFAULT)
    if isinstance(name, Path) or "/" in name or name.endswith(".json"):
        return _read(Path(name))
    if _NAME.fullmatch(name):
        kept = constants_directory() / f"{name}.json"
        if kept.exists():
            return _read(kept)
        packed = resources.files(__package__) / f"{name}.json"
        if packed.is_file():
            return _parsed(packed.read_text(encoding="utf-8"), f"the package's {name}.json")
    known = sorted({path.stem for path in constants_directory().glob("*.json")} | {DEFAULT, MEASURED})
    raise ConstantsError(
        f"there are no constants named {name!r}; known: {', '.join(known)}; "
        "measure this machine with: semistream tune --calibrate"
    )


def save_constants(
    constants: Constants, path: Path | None = None, *, machine: dict[str, str | int] | None = None
) -> Path:
    """Write constants where `load_constants` finds them by name, or to ``path``; return the file."""
    if path is None:
        if not _NAME.fullmatch(constants.name):
            raise ConstantsError(f"{constants.name!r} cannot be the name of constants; use letters, digits, . _ -")
        path = constants_directory() / f"{constants.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = dataclasses.asdict(constants) | {"processor": dict(constants.processor)}
    if machine is not None:
        written["machine"] = machine
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)  # atomically
    return path


def _read(path: Path) -> Constants:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConstantsError(f"cannot read constants from {path}: {error.strerror}") from error
    return _parsed(text, str(path))


def _parsed(text: str, where: str) -> Constants:
    try:
        found = json.loads(text)
        names = {field.name for field in dataclasses.fields(Constants)}
        known = {name: value for name, value in found.items() if name in names}
        return Constants(**known | {"processor": tuple(sorted(known.get("processor", {}).items()))})
    except (ValueError, TypeError, AttributeError) as error:
        raise ConstantsError(f"{where} does not hold constants ({error}); measure them again") from error
