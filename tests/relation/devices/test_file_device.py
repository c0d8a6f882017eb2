"""The file device: what is read is what was written, or an error that says what is wrong; nothing else."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from page_files import WAYS, ways, write_pages
from semistream.core.compiled import frozen
from semistream.core.errors import CorruptPageError, SemistreamError
from semistream.relation.devices.device import Frames
from semistream.relation.devices.file_device import DeviceError, FileDevice
from semistream.relation.devices.reader import Method


@pytest.fixture(params=WAYS, ids=lambda way: way[1])
def device(request: pytest.FixtureRequest, three_files: tuple[list[tuple[Path, int]], Frames]) -> Iterator[FileDevice]:
    direct, method = request.param
    with FileDevice(three_files[0], 4096, direct=direct, method=method, depth=4) as device:
        assert device.direct is direct, "these tests need a file system with direct reads"
        yield device


# -- reading ------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(ids=st.lists(st.integers(0, 240), max_size=300), runs=st.booleans(), method=st.sampled_from(WAYS))
def test_any_pages_in_any_order(
    three_files: tuple[list[tuple[Path, int]], Frames],
    ids: list[int],
    runs: bool,
    method: tuple[bool, Method],
) -> None:
    files, written = three_files
    if runs:
        ids = [page for first in ids[:20] for page in range(first, min(first + 30, 241))]
    with FileDevice(files, 4096, direct=method[0], method=method[1], depth=3) as device:
        frames = device.allocate(len(ids) + 1)
        device.read(np.array(ids, np.int64), frames)
        assert (frames[: len(ids)] == written[ids]).all()
        assert not frames[len(ids) :].any()
        assert device.counters.pages == len(ids)


def test_runs_are_counted_however_many_requests_they_take(device: FileDevice) -> None:
    frames = device.allocate(241)
    device.read(np.arange(241), frames)
    assert device.counters.reads == 3, "one run in each file that has pages"
    assert (device.counters.pages, device.counters.bytes) == (241, 241 * 4096)
    assert device.counters.seconds > 0
    device.read(np.array([9, 8, 7, 100, 101, 102, 102]), frames)
    assert device.counters.reads == 3 + 5


def test_single_reads_equal_runs(device: FileDevice) -> None:
    run, single = device.allocate(60), device.allocate(60)
    device.read(np.arange(20, 80), run)
    for i in range(60):
        device.read(np.array([20 + i]), single[i : i + 1])
    assert (run == single).all()
    assert run.any(axis=1).all()


@ways
@pytest.mark.parametrize("page_bytes", [512, 4096, 8192, 65536, 1 << 20])
def test_page_sizes(tmp_path: Path, page_bytes: int, direct: bool, method: Method) -> None:
    written = write_pages(tmp_path / "p", 9, page_bytes)
    with FileDevice([(tmp_path / "p", 9)], page_bytes, direct=direct, method=method) as device:
        frames = device.allocate(9)
        for ids in ([8, 0, 1, 2, 5], list(range(9)), [4]):
            device.read(np.array(ids), frames[: len(ids)])
            assert (frames[: len(ids)] == written[ids]).all()


@pytest.mark.parametrize("page_bytes", [64, 1000, 4104])
def test_odd_page_sizes_are_read_through_the_page_cache(tmp_path: Path, page_bytes: int) -> None:
    written = write_pages(tmp_path / "p", 300, page_bytes)
    with FileDevice([(tmp_path / "p", 300)], page_bytes, direct=True) as device:
        assert not device.direct
        assert device.method == "readahead"
        frames = device.allocate(300)
        device.read(np.arange(300), frames)
        assert (frames == written).all()


@pytest.mark.parametrize("page_bytes", [0, 8, 56, 100, 4095, -8192])
def test_page_sizes_without_room_for_a_checksum_are_refused(tmp_path: Path, page_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8, at least 64"):
        FileDevice([], page_bytes)


def test_many_threads_at_once(device: FileDevice, three_files: tuple[Any, Frames]) -> None:
    written, wrong = three_files[1], []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        frames = device.allocate(50)
        for _ in range(30):
            ids = generator.integers(0, 241, 50)
            device.read(ids, frames)
            if not (frames == written[ids]).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert device.counters.pages == 8 * 30 * 50
    assert len(device._reader._process.idle_queues) <= 8


def test_signals_do_not_disturb(device: FileDevice, three_files: tuple[Any, Frames]) -> None:
    frames, ids = device.allocate(241), np.random.default_rng(0).permutation(241)
    seen: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(seen) < 20:
            frames[:] = 0
            device.read(ids, frames)
            assert (frames == three_files[1][ids]).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_forked_child_reads_with_queues_of_its_own(device: FileDevice, three_files: tuple[Any, Frames]) -> None:
    ids = np.arange(100)
    frames = device.allocate(100)
    device.read(ids, frames)
    frames[:] = 0
    child = os.fork()
    if child == 0:
        status = 1
        try:
            device.read(ids, frames)
            status = 0 if (frames == three_files[1][ids]).all() else 2
            device.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert not frames.any(), "the child wrote into memory of its parent"
    device.read(ids, frames)
    assert (frames == three_files[1][ids]).all()


def test_an_error_of_the_system_is_reported_with_its_reason(
    device: FileDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = device._reader._files
    monkeypatch.setattr(device._reader, "_files", frozen(np.full_like(files, 10**6)))
    with pytest.raises(DeviceError, match=r"reading page 5 of .*Bad file descriptor"):
        device.read(np.array([5]), device.allocate(1))


# -- arguments and life -------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit_are_refused(device: FileDevice) -> None:
    frames = device.allocate(4)
    for page in (-1, 241, 2**62):
        with pytest.raises(IndexError, match=f"page {page} is not among the 241 pages"):
            device.read(np.array([3, page]), frames)
    with pytest.raises(ValueError, match="5 pages do not fit into 4 frames"):
        device.read(np.arange(5), frames)
    with pytest.raises(ValueError, match=r"use Device\.allocate"):
        device.read(np.arange(1), np.zeros((1, 4000), np.uint8))
    with pytest.raises(ValueError, match="contiguous and writable"):
        device.read(np.arange(2), frames[::2])
    with pytest.raises(ValueError, match="one-dimensional"):
        device.read(np.zeros((1, 1), np.int64), frames)
    with pytest.raises(ValueError, match="cannot allocate -1"):
        device.allocate(-1)
    assert device.counters.pages == 0


def test_frames_that_are_not_aligned(three_files: tuple[list[tuple[Path, int]], Frames]) -> None:
    room = np.zeros(3 * 4096 + 8, np.uint8)
    begin = 8 - room.ctypes.data % 8 + (0 if (room.ctypes.data + 8) % 512 else 8)
    frames = room[begin : begin + 2 * 4096].reshape(2, 4096)
    assert frames.ctypes.data % 512
    methods: list[Method] = ["queue", "threads"]
    for method in methods:
        refused = pytest.raises(ValueError, match=r"aligned frames; use rows of what Device\.allocate")
        with FileDevice(three_files[0], 4096, method=method) as device, refused:
            device.read(np.arange(2), frames)


@pytest.mark.parametrize("depth", [0, -1, 5000])
def test_depth_has_limits(depth: int) -> None:
    with pytest.raises(ValueError, match="1 to 1024"):
        FileDevice([], 4096, depth=depth)


def test_readahead_needs_the_cache(three_files: tuple[list[tuple[Path, int]], Frames]) -> None:
    with pytest.raises(ValueError, match="direct=False"):
        FileDevice(three_files[0], 4096, direct=True, method="readahead")


def test_frames_are_aligned_zeroed_and_not_touched_before_they_are_used(device: FileDevice) -> None:
    frames = device.allocate(1 << 20)  # 4 GiB of room, of which nothing is used
    assert frames.ctypes.data % 4096 == 0
    assert frames.shape == (1 << 20, 4096)
    assert not frames[[0, 1 << 19, -1]].any()
    assert device.allocate(0).shape == (0, 4096)


def test_measuring(device: FileDevice) -> None:
    profile = device.measure(0.005)
    assert profile.direct == device.direct
    assert profile.depth == 4
    assert profile.seek_seconds >= 0
    assert profile.transfer_seconds > 0
    assert profile.random_reads_per_second > 0
    assert profile.sequential_bytes_per_second == pytest.approx(4096 / profile.transfer_seconds)
    assert device.counters.pages == 0, "measuring is not reading"


def test_measuring_one_page_and_none(tmp_path: Path) -> None:
    write_pages(tmp_path / "p", 1, 8192)
    with FileDevice([(tmp_path / "p", 1)], 8192) as device:
        assert device.measure(0.001).transfer_seconds > 0
    with FileDevice([], 8192) as device, pytest.raises(ValueError, match="without pages"):
        device.measure()


def test_a_closed_device_says_so(device: FileDevice) -> None:
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed; open the relation again") as caught:
        device.read(np.arange(1), device.allocate(1))
    assert isinstance(caught.value, SemistreamError)


def test_closing_waits_for_readers(device: FileDevice, three_files: tuple[Any, Frames]) -> None:
    """A read that began before the end is whole, a later one is refused, and no file is read by mistake."""
    outcomes: list[str] = []
    begun = threading.Barrier(5)

    def work() -> None:
        frames, ids = device.allocate(241), np.arange(241)
        begun.wait()
        for _ in range(10_000):
            try:
                device.read(ids, frames)
            except DeviceError:
                outcomes.append("closed")
                return
            if not (frames == three_files[1]).all():
                outcomes.append("wrong")
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    while device.counters.reads < 50:
        pass
    device.close()
    for thread in threads:
        thread.join()
    assert outcomes == ["closed"] * 4


def test_files_are_closed(three_files: tuple[list[tuple[Path, int]], Frames], tmp_path: Path) -> None:
    folder = three_files[0][0][0].parent

    def opened() -> set[tuple[str, str]]:
        """Return descriptors of what a device opens, and their targets; sockets of others come and go."""
        found = set()
        for one in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # of the listing itself
                found.add((one, os.readlink(f"/proc/self/fd/{one}")))
        return {pair for pair in found if pair[1].startswith((str(folder), str(tmp_path), "/dev/null"))}

    gc.collect()  # of tests before
    before = opened()
    device = FileDevice(three_files[0], 4096)
    its_own = opened() - before
    assert len(its_own) == 4
    del device
    assert not opened() & its_own
    (tmp_path / "empty").touch()
    before = opened()
    with pytest.raises(CorruptPageError):
        FileDevice([*three_files[0], (tmp_path / "empty", 1)], 4096)
    assert opened() <= before
