"""Every registered join passes every check of the conformance suite."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

import semistream
from semistream.joins.checks import Check, checks

LIMIT_SECONDS = 120


def all_checks() -> list[Check]:
    return [check for algorithm in semistream.algorithms() for check in checks(algorithm)]


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A join that turns in a circle fails its check instead of holding up all others."""

    def stop(_: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: f"{check.algorithm}: {check.name}")
def test_conformance(check: Check) -> None:
    check()
