"""Contestants of `semistream bench peers`: our joins and the alternatives to them.

One file each. To add one, add a module with a `Contestant` to this folder, and name the class in the module's
``CONTESTANTS``.
"""

from __future__ import annotations

import functools

from semistream.core.arguments import nearest
from semistream.core.plugins import modules_of
from semistream_lab.benchmarks.peers.contestant import Contestant, Kind, Task

__all__ = ["Contestant", "Kind", "Task", "contestant", "contestants"]


@functools.cache
def _registry() -> dict[str, type[Contestant]]:
    return {kind.id: kind for module in modules_of(__name__) for kind in getattr(module, "CONTESTANTS", ())}


def contestants() -> list[str]:
    """Return the ids of all contestants: our joins, then peers, then ideals and limits."""
    order: list[Kind] = ["join", "peer", "ideal", "limit"]
    return sorted(_registry(), key=lambda name: order.index(_registry()[name].kind))


def contestant(name: str) -> type[Contestant]:
    """Return the class of a contestant."""
    try:
        return _registry()[name]
    except KeyError:
        hint = nearest(name, _registry(), f"there are {', '.join(contestants())}")
        raise ValueError(f"no contestant is called {name!r}; {hint}") from None
