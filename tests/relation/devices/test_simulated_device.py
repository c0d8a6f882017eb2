"""The simulated device: the papers' costs, to the second."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from semistream.core.clock import VirtualClock
from semistream.core.errors import CorruptPageError
from semistream.relation.devices.device import DeviceCounters, DeviceError, Frames, Ints
from semistream.relation.devices.simulated_device import MemoryPages, SimulatedDevice
from semistream.relation.storage.checksum import seal


def device_of(pages: int, **costs: float) -> tuple[SimulatedDevice, Frames]:
    frames = np.random.default_rng(1).integers(0, 256, (pages, 512), dtype=np.uint8)
    seal(frames, 0)
    return SimulatedDevice(MemoryPages(frames), clock=VirtualClock(), **costs), frames


@pytest.mark.parametrize(
    ("pages", "runs"),
    [
        ([5], 1),
        ([0, 1, 2, 3], 1),
        ([3, 2, 1, 0], 4),
        ([1, 1, 2], 2),
        ([7, 8, 20, 21, 22, 3], 3),
    ],
)
def test_a_run_costs_one_seek_and_its_transfers(pages: list[int], runs: int) -> None:
    device, written = device_of(30, seek_seconds=2.0, transfer_seconds=0.5)
    frames = device.allocate(len(pages))
    device.read(np.array(pages), frames)
    assert (frames == written[pages]).all()
    seconds = 2.0 * runs + 0.5 * len(pages)
    assert device.clock.now() == seconds
    assert device.counters == DeviceCounters(runs, len(pages), len(pages) * 512, seconds)


def test_measuring_returns_the_costs_and_takes_no_time() -> None:
    device, _ = device_of(3, seek_seconds=0.0085, transfer_seconds=0.0001)
    profile = device.measure()
    assert (profile.seek_seconds, profile.transfer_seconds) == (0.0085, 0.0001)
    assert profile.random_reads_per_second == pytest.approx(1 / 0.0086)
    assert profile.sequential_bytes_per_second == pytest.approx(512 / 0.0001)
    assert profile.queued_seek_seconds == pytest.approx(0.0085)
    assert device.clock.now() == 0


def test_a_damaged_page_in_memory_is_caught() -> None:
    device, written = device_of(5)
    written[3, 77] ^= 4
    frames = device.allocate(2)
    with pytest.raises(CorruptPageError, match="page 3") as caught:
        device.read(np.array([1, 3]), frames)
    assert caught.value.page == 3
    assert not frames.any()
    assert device.counters.pages == 0


def test_pages_can_be_charged_for_more_than_they_hold() -> None:
    class Small:
        page_bytes, frame_bytes, page_count = 8192, 64, 1000

        def fill(self, pages: Ints, frames: Frames) -> None:
            frames[:] = 0
            frames[:, :8] = pages.reshape(-1, 1).view(np.uint8)

    device = SimulatedDevice(Small(), clock=VirtualClock())
    frames = device.allocate(3)
    device.read(np.array([4, 999, 0]), frames)
    assert frames.view(np.int64)[:, 0].tolist() == [4, 999, 0]
    assert device.counters.bytes == 3 * 8192


def test_threads_add_up() -> None:
    device, _ = device_of(64, seek_seconds=1.0, transfer_seconds=1.0)

    def work(first: int) -> None:
        frames = device.allocate(4)
        for _ in range(50):
            device.read(np.arange(first, first + 4), frames)

    threads = [threading.Thread(target=work, args=(4 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.counters.pages == 8 * 50 * 4
    assert device.clock.now() == device.counters.seconds == 8 * 50 * 5.0


def test_what_cannot_be_is_refused() -> None:
    device, _ = device_of(4)
    frames = device.allocate(2)
    for page in (-1, 4):
        with pytest.raises(IndexError, match=f"page {page} is not among the 4 pages"):
            device.read(np.array([0, page]), frames)
    with pytest.raises(ValueError, match="3 pages do not fit into 2 frames"):
        device.read(np.arange(3), frames)
    with pytest.raises(ValueError, match="transfer_seconds > 0"):
        device_of(1, transfer_seconds=0.0)
    device.read(np.zeros(0, np.int64), frames)
    assert device.counters == DeviceCounters()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.read(np.arange(1), frames)


def test_runs_longer_than_a_limit_cost_more_seeks() -> None:
    device, _ = device_of(64, seek_seconds=1.0, transfer_seconds=0.25)
    pages = np.array([0, 1, 2, 3, 4, 10, 11, 20])
    device.read(pages, device.allocate(8))
    assert (device.counters.reads, device.clock.now()) == (3, 5.0)
    device.longest_run = 2
    device.read(pages, device.allocate(8))
    assert (device.counters.reads, device.clock.now()) == (3 + 5, 5.0 + 7.0)
