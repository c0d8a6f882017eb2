"""The ``[[follow]]`` tables of a pipeline file: relations that follow a Delta or Iceberg table while it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from semistream.core.errors import SemistreamError
from semistream.core.paths import is_address, local_path
from semistream.core.units import parse_bytes
from semistream.relation.followed.follower import Follower
from semistream.relation.stores.store_path import StorePath, place_of
from semistream.spark.pipeline.document import Document, Place, Problem, Section

__all__ = ["FollowPlan", "missing_relation", "read_follows"]

_PART = re.compile(r"(\d+) +(millisecond|second|minute|hour|day)s?", re.IGNORECASE)
_SECONDS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}


@dataclass(frozen=True)
class FollowPlan:
    """A relation that follows a table."""

    place: Place
    relation: Path | StorePath
    follower: Follower = field(repr=False)
    every: float
    """Seconds between looks for new commits."""


def read_follows(document: Document) -> tuple[FollowPlan, ...]:
    """Read and check all tables ``[[follow]]``. Nothing is written; errors are in ``document.problems``."""
    found = [_read(section, document.path.parent) for section in document.root.sections("follow")]
    plans = [plan for plan in found if plan is not None]
    for at, plan in enumerate(plans):
        if any(str(other.relation) == str(plan.relation) for other in plans[:at]):
            document.note(plan.place, f"two tables are followed into {plan.relation}; give each its own relation")
    return tuple(plans)


def missing_relation(problem: Problem, follows: tuple[FollowPlan, ...]) -> bool:
    """Whether a problem is only that a relation which follows a table has not been built yet."""
    return any(problem.message.startswith(f"there is no relation at {plan.relation}:") for plan in follows)


def _read(section: Section, folder: Path) -> FollowPlan | None:
    table, relation = section.text("table", required=True), section.text("relation", required=True)
    key, catalog, options = section.texts("key"), section.text("catalog"), section.options("options")
    every = section.read("every", _read_interval)
    memory, page_size = section.read("memory", parse_bytes), section.read("page_size", parse_bytes)
    shards, fill = section.integer("shards", 1), section.read("fill", _read_fraction)
    encoding = section.text("encoding")
    section.finish()
    if table is None or relation is None:
        return None
    try:
        place = place_of(relation)
        place = (folder / place).absolute() if isinstance(place, Path) else place
        if catalog is None and not is_address(table):
            table = str((folder / local_path(table)).absolute())
        follower = Follower(
            table, place, key or None, catalog=catalog, options=options, memory=memory or "512MB",
            page_size=page_size or "8KiB", fill=1.0 if fill is None else fill, shards=shards or 1,
            encoding=encoding or "auto",
        )  # fmt: skip
    except (SemistreamError, ValueError) as error:
        section.note(str(error))
        return None
    except OSError as error:
        section.note(
            f"{relation} cannot be opened: {error.strerror or error}; give another path, or grant access to it"
        )
        return None
    return FollowPlan(section.place, place, follower, 60.0 if every is None else every)


def _read_fraction(given: object) -> float:
    try:
        return float(str(given))
    except ValueError:
        raise ValueError(f"{given!r} is not a number; write for example 0.8") from None


def _read_interval(given: object) -> float:
    """Return the seconds of an interval such as ``30 seconds``."""
    text = str(given).strip()
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ValueError(f"{text!r} is not an interval; write for example '30 seconds'")
    return sum(float(count) * _SECONDS[unit.lower()] for count, unit in parts)
