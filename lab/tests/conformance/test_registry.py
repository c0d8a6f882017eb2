"""Every registered join passes every check of the conformance suite."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

import semistream
from semistream_lab.conformance.checks import Check, checks

CPU_SECONDS = 60
"""What a join that turns in a circle gets; it does not depend on what else the machine does."""
SECONDS = 900
"""What a join that waits for itself gets."""


QUICK = {"unique, left", "repeated, inner", "batches of 51", "1.3 times the least memory", "goes on after a drain"}
"""Checks that a quick run makes too."""


def all_checks() -> Iterator[object]:
    for algorithm in semistream.algorithms():
        for check in checks(algorithm):
            marks = [] if check.name in QUICK else [pytest.mark.slow]
            yield pytest.param(check, id=f"{check.algorithm}: {check.name}", marks=marks)


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A join without end fails its check instead of holding up all others."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {CPU_SECONDS} s of work or {SECONDS} s of waiting")

    clocks = ((signal.SIGPROF, signal.ITIMER_PROF, CPU_SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, SECONDS))
    before = [signal.signal(number, stop) for number, _, _ in clocks]
    for _, timer, seconds in clocks:
        signal.setitimer(timer, seconds)
    yield
    for (number, timer, _), handler in zip(clocks, before, strict=True):
        signal.setitimer(timer, 0)
        signal.signal(number, handler)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("check", [*all_checks()])
def test_conformance(check: Check) -> None:
    check()


def test_the_quick_checks_are_checks() -> None:
    assert {check.name for check in checks("hybridjoin")} >= QUICK
