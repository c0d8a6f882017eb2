"""Plugin modules: modules of our own packages, and modules that other installed packages register.

Another package registers its module as an entry point in its ``pyproject.toml``::

    [project.entry-points."semistream.joins"]
    myjoin = "mypackage.myjoin"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

__all__ = ["modules_of"]


def modules_of(package: str) -> Iterator[ModuleType]:
    """Yield the modules in ``package``, then the modules installed as entry points of that name."""
    for found in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        yield import_module(found.name)
    for entry in entry_points(group=package):
        yield import_module(entry.module)
