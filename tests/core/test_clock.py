"""Clocks."""

from __future__ import annotations

import threading

import pytest

from semistream.core.clock import RealClock, VirtualClock


def test_virtual_time_passes_only_when_told() -> None:
    clock = VirtualClock(5.0)
    assert clock.now() == 5.0
    clock.advance(2.5)
    clock.advance(0)
    assert clock.now() == 7.5
    clock.advance_to(7.0)
    assert clock.now() == 7.5
    clock.advance_to(9.0)
    assert clock.now() == 9.0
    with pytest.raises(ValueError, match="not by -1 s"):
        clock.advance(-1)


def test_threads_add_up() -> None:
    clock = VirtualClock()

    def work() -> None:
        for _ in range(2000):
            clock.advance(0.25)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == 2000.0


def test_real_time_runs() -> None:
    clock = RealClock()
    assert clock.now() <= clock.now()
