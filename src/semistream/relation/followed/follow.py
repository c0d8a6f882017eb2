"""Follows a table until R has all its commits, or until it is stopped."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence

from semistream.core.errors import SemistreamError
from semistream.relation.followed.follower import Follower, Lag, Step
from semistream.relation.pages.shard_writer import PAGE_BYTES
from semistream.relation.storage import manifest as manifests

__all__ = ["FollowThread", "catch_up", "follow", "keep_following"]

_TRIES = 3
"""Consecutive failures after which following ends. A store or a catalog may be out of reach for a while."""


def follow(
    table: str | os.PathLike[str],
    path: str | os.PathLike[str],
    key: str | Sequence[str] | None = None,
    *,
    catalog: str | None = None,
    options: Mapping[str, str] | None = None,
    every: float | None = None,
    memory: int | str = "512MB",
    rebuild: bool = False,
    page_size: int | str = PAGE_BYTES,
    fill: float = 1.0,
    shards: int = 1,
    encoding: str = "auto",
    report: Callable[[Step], None] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Make a relation equal to a Delta or Iceberg table, commit by commit; return the number of R's newest version.

    The first call builds R from the newest snapshot. Each later commit of the table becomes one version of R, which
    names the commit. The next call continues there, even if this one is killed. Only keys whose rows differ are
    written. If a commit changes the columns, or more than half of the pages, R is built again from that commit.

    Parameters
    ----------
    table
        Directory or address of a Delta table, or namespace and name of an Iceberg table: ``"shop.products"``.
    path
        The relation.
    key
        Key columns, unique in the table. May be left out if R exists, or if the Iceberg table has identifier fields.
    catalog
        Name of the Iceberg catalog in pyiceberg's configuration; by default the table is a Delta table.
    options
        Storage options of the Delta table, or properties of the Iceberg catalog, such as ``{"uri": "sqlite:///…"}``.
    every
        Seconds between looks for new commits, until ``stop`` is set. By default it returns once R has all commits.
    memory
        Bytes for sorting and for changed pages. Larger commits spill next to R and are applied in parts.
    rebuild
        Build R from the newest snapshot, as a new version, if it cannot continue: the source has removed commits that R
        needs, or something other than `follow` changed R.
    page_size
        Size of a page, as in `Relation.build`; applies when R is built for the first time.
    fill
        Fraction of each page that is filled when R is built for the first time.
    shards
        Number of shards when R is built for the first time.
    encoding
        ``"plain"`` if columns must not be packed, as in `Relation.build`; applies when R is built for the first time.
    report
        Called after each version.
    stop
        Set it, from another thread, to end following after the current commit.

    Examples
    --------
    >>> semistream.follow("lake/products", "/data/products", key="id")                        # doctest: +SKIP
    7
    >>> semistream.follow("shop.products", "/data/products", catalog="prod", every=30)        # doctest: +SKIP
    """
    follower = Follower(
        table, path, key, catalog=catalog, options=options, memory=memory, rebuild=rebuild, page_size=page_size,
        fill=fill, shards=shards, encoding=encoding,
    )  # fmt: skip
    if every is None:
        catch_up(follower, report, stop)
    else:
        keep_following(follower, every, stop or threading.Event(), report)
    newest = manifests.latest(follower.path)
    assert newest is not None or (stop is not None and stop.is_set())
    return newest or 0


def catch_up(
    follower: Follower, report: Callable[[Step], None] | None = None, stop: threading.Event | None = None
) -> int:
    """Make all commits of the source versions of R; return how many there were."""
    done = 0
    while not (stop is not None and stop.is_set()) and (step := follower.step()) is not None:
        done += 1
        if report is not None:
            report(step)
    return done


def keep_following(
    follower: Follower,
    every: float,
    stop: threading.Event,
    report: Callable[[Step], None] | None = None,
    lagging: Callable[[Lag], None] | None = None,
) -> None:
    """Follow until ``stop`` is set. An error that may pass is raised only after three attempts.

    ``lagging`` is called at every look, before and after R catches up.
    """
    failures = 0
    while not stop.is_set():
        try:
            if lagging is not None:
                lagging(follower.lag())
            catch_up(follower, report, stop)
            if lagging is not None:
                lagging(follower.lag())
            failures = 0
        except (OSError, SemistreamError) as error:
            failures += 1
            if isinstance(error, ValueError) or failures == _TRIES:  # it says what to do, and waiting is not it
                raise
        stop.wait(min(every, threading.TIMEOUT_MAX))


class FollowThread(threading.Thread):
    """Follows a table in the background.

    Parameters
    ----------
    follower, every, report, lagging
        See `keep_following`.
    failed
        Called with the error that ended it.
    """

    def __init__(
        self,
        follower: Follower,
        every: float,
        *,
        failed: Callable[[BaseException], None],
        report: Callable[[Step], None] | None = None,
        lagging: Callable[[Lag], None] | None = None,
    ) -> None:
        super().__init__(name=f"follows {follower.source.table}", daemon=True)
        self._follow = follower, every
        self._calls = report, lagging
        self._failed = failed
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            keep_following(*self._follow, self._stop_asked, *self._calls)
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Stop after the current commit, and wait for it."""
        self._stop_asked.set()
        if self.is_alive():
            self.join()
