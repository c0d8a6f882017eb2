"""`semistream bench store`: compare a join with R in an object store to the same join with R in a directory.

The joins take turns with the same batches, each drained as a micro-batch is. R is in a directory, and in the store with
a local tier for all of R, with a tier for a quarter, and with no tier. The first tier is filled in advance, the second
during the run. The medians without the warm-up are compared. The numbers include the latency of the store.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from semistream.core.machine import describe_machine
from semistream.core.statistics import JoinStatistics
from semistream.core.units import format_bytes, parse_bytes
from semistream.joins import Join, create
from semistream.relation.relation import Relation
from semistream.relation.stores.store_path import Place, StorePath, place_of
from semistream.tuner.packing_gain import plain_pages
from semistream_lab.benchmarks.join_rates import BenchError, Note, RateSpec, code_version

__all__ = ["DIRECTORY", "TIERS", "bench_store", "upload"]

DIRECTORY = "a directory"
TIERS = {"all": "150%", "a quarter": "25%", "nothing": None}
"""Size of the local tier by name, as a share of R's bytes if its columns were not packed; None is no tier."""
_AT_ONCE = 2048
_PASSES = 20
_PLACE, _SIZE = "SEMISTREAM_LOCAL_DIR", "SEMISTREAM_LOCAL"


def upload(relation: Path, address: str) -> StorePath:
    """Upload a relation to a store, unless it is there; the manifest is uploaded last."""
    above = place_of(address)
    if not isinstance(above, StorePath):
        raise BenchError(f"{address} is not an address in an object store; give one such as s3://bucket/bench")
    place = above / relation.name
    there = place.entries()
    for name in sorted((file.name for file in relation.iterdir() if file.is_file()), key=lambda name: name[0] == "m"):
        if name not in there:
            place.store.upload((place / name).key, relation / name)
    return place


def bench_store(
    spec: RateSpec,
    path: Path,
    address: str,
    scratch: Path,
    *,
    tiers: tuple[str, ...] = (),
    note: Note = lambda *_: None,
) -> dict[str, Any]:
    """Measure the first join of ``spec`` with R in a directory and in a store.

    Parameters
    ----------
    spec
        What to measure.
    path
        The relation that `prepare_relation` built.
    address
        Address in the store to which it is uploaded, if it is not there.
    scratch
        Directory for the local tiers, which are removed at the end.
    tiers
        Names of `TIERS` to measure. Empty: all.
    note
        Called with the current step, and with 1 each time a batch has been joined.
    """
    with ExitStack() as stack:
        _have_alone(scratch, stack)
        note("uploading R", 0)
        place = upload(path, address)
        joins = {DIRECTORY: _opened(spec, path, None, stack)}
        for number, name in enumerate(tiers or TIERS):
            note(f"opening R, of which {name} is here", 0)
            with _tier(scratch / f"tier-{number}", stack):
                joins[name] = _opened(spec, place, _tier_bytes(path, TIERS[name]), stack)
                if name == "all":
                    _read_all(joins[name].relation)
        seconds: dict[str, list[float]] = {name: [] for name in joins}
        before: dict[str, JoinStatistics] = {}
        for number, batch in enumerate(spec.stream_batches()):
            for name, join in joins.items():
                note(name, 0)
                if number == spec.warm_up:
                    before[name] = join.stats
                began = time.perf_counter()
                rows = sum(result.num_rows for result in join.process([batch]))
                if number >= spec.warm_up:
                    seconds[name].append(time.perf_counter() - began)
                if rows != batch.num_rows:
                    raise BenchError(
                        f"{rows:,} rows for {batch.num_rows:,} stream tuples; each has exactly one match in R"
                    )
                note("", 1)
        usual = statistics.median(seconds[DIRECTORY])
        found = {name: _result(join, before[name], seconds[name], usual) for name, join in joins.items()}
    return {
        "places": found, "address": str(place), "spec": asdict(spec), "machine": describe_machine(path),
        "commit": code_version(), "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _tier_bytes(path: Path, share: str | None) -> int | None:
    if share is None:
        return None
    with Relation.open(path) as relation:
        pages = plain_pages(relation)
        return parse_bytes(share, of=relation.nbytes if pages is None else pages * relation.page_bytes)


def _opened(spec: RateSpec, place: Place, local: int | None, stack: ExitStack) -> Join:
    relation = stack.enter_context(Relation.open(place, local=local))
    workload = spec.workload()
    return create(
        spec.ids[0], relation, on=workload.stream_key, how="inner", schema=workload.stream.schema,
        memory=parse_bytes(spec.memory, of=relation.nbytes),
    )  # fmt: skip


def _have_alone(scratch: Path, stack: ExitStack) -> None:
    """Lock ``scratch``, so that no other run removes the tiers of this one."""
    directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, directory)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BenchError(
            f"another run of bench store uses local tiers in {scratch}; wait until it has ended, or give another "
            "directory (--dir)"
        ) from None


@contextmanager
def _tier(directory: Path, stack: ExitStack) -> Iterator[None]:
    """Use ``directory`` as the local tier of relations that are opened within this context."""
    shutil.rmtree(directory, ignore_errors=True)  # left by a run that was killed
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    usual = {name: os.environ.pop(name) for name in (_PLACE, _SIZE) if name in os.environ}
    os.environ[_PLACE] = str(directory)
    try:
        yield
    finally:
        os.environ.pop(_PLACE)
        os.environ.update(usual)


def _read_all(relation: Relation) -> None:
    """Read until all of R is in the local tier.

    The tier skips pages while it stores others; a later pass adds them.
    """
    for _ in range(_PASSES):
        before = relation.counters.requests
        _read_once(relation)
        if relation.counters.requests == before:
            return
        time.sleep(0.1)
    raise BenchError(
        f"the local tier does not hold all of R after {_PASSES} passes; free space for 1.5 times "
        f"{format_bytes(relation.nbytes)} where bench store keeps R (--dir), or measure other tiers only (--tier)"
    )


def _read_once(relation: Relation) -> None:
    frames = relation.frames(min(_AT_ONCE, relation.page_count))
    for begin in range(0, relation.page_count, len(frames)):
        pages = np.arange(begin, min(begin + len(frames), relation.page_count))
        relation.read(pages, frames[: pages.size])


def _result(join: Join, before: JoinStatistics, seconds: list[float], usual: float) -> dict[str, Any]:
    done = join.stats.since(before)
    median, wanted = statistics.median(seconds), done.pages_useful * join.relation.page_bytes
    return {
        "seconds": seconds,
        "median": median,
        "times_directory": median / usual,
        "pages": done.pages_read,
        "local_pages": done.local_pages,
        "requests": done.store_requests,
        "fetched_bytes": done.store_bytes,
        "wanted_bytes": wanted,
        "fetched_of_wanted": done.store_bytes / wanted if wanted else 0.0,
    }
