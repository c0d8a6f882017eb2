"""The file device where the system lacks a way to read, or loses it: the next best is taken, and pages are the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page_files import write_pages
from semistream.relation.devices import file_device, request_queue, system_calls, transfers
from semistream.relation.devices.device import DeviceError, Frames
from semistream.relation.devices.file_device import FileDevice


def test_without_direct_reads_pages_come_through_the_cache(
    three_files: tuple[list[tuple[Path, int]], Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    with FileDevice(three_files[0], 4096, direct=True) as device:
        assert not device.direct
        frames = device.allocate(241)
        device.read(np.arange(241), frames)
        assert (frames == three_files[1]).all()
        assert "buffered" in repr(device)


def test_direct_reads_are_tried_once_for_each_file_system_and_size_of_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, works, device_number = [], True, 1
    real, real_stat = os.preadv, os.stat

    def seen(descriptor: int, buffers: Any, offset: int) -> int:
        tried.append(offset)
        if not works:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, buffers, offset)

    def placed(path: Any, **options: Any) -> os.stat_result:
        found = real_stat(path, **options)
        return os.stat_result((*found[:2], device_number, *found[3:]))

    monkeypatch.setattr(os, "preadv", seen)
    monkeypatch.setattr(os, "stat", placed)
    monkeypatch.setattr(file_device, "_read_directly", set())
    files = [(tmp_path / name, pages) for name, pages in (("none.pages", 0), ("one.pages", 1), ("more.pages", 8))]
    later = [(tmp_path / "later.pages", 8)]
    for path, pages in files + later:
        write_pages(path, pages, 4096)
    for opened, page_bytes, expected in (
        (files, 4096, [0, 0, 4096]), (files, 4096, []), (later, 4096, []), (files, 512, [0, 0, 512]),
    ):  # fmt: skip
        tried.clear()
        with FileDevice(opened, page_bytes) as device:
            assert device.direct
        assert tried == expected, "one page is half of a try"
    works, device_number = False, 2
    with FileDevice(later, 4096) as device:
        assert not device.direct, "what is known of one file system is not so of another"
    works = True
    with FileDevice(later, 4096) as device:
        assert device.direct, "a failure is not remembered"


def test_a_file_without_direct_reads_on_a_file_system_that_has_them_is_tried_when_opened_again(
    three_files: tuple[list[tuple[Path, int]], Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_device, "_read_directly", set())
    FileDevice(three_files[0], 4096).close()
    with FileDevice(three_files[0], 4096) as device:
        refused = np.array([0, errno.EINVAL, 0])
        error = device._error(transfers.FAILED, refused, np.zeros(1, np.int64), device.allocate(1))
        assert isinstance(error, DeviceError)

    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "preadv", refuse)
    with FileDevice(three_files[0], 4096) as device:
        assert not device.direct


def test_without_queues_threads_read(
    three_files: tuple[list[tuple[Path, int]], Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_calls, "IO_SETUP", -1)  # no such system call
    monkeypatch.setattr(request_queue, "_spares", request_queue._Spares())
    with FileDevice(three_files[0], 4096) as device:
        assert (device.direct, device.method) == (True, "threads")
        frames = device.allocate(241)
        device.read(np.arange(241), frames)
        assert (frames == three_files[1]).all()


def test_a_queue_that_stops_working_is_replaced(three_files: tuple[list[tuple[Path, int]], Frames]) -> None:
    with FileDevice(three_files[0], 4096) as device:
        frames = device.allocate(241)
        for _ in range(2):
            device._reader._process.idle_queues[0].destroy()
            device.read(np.arange(241), frames)  # by threads
            assert (frames == three_files[1]).all()
            assert not device._reader._process.idle_queues
            device.read(np.arange(241), frames)  # by a new queue
            assert len(device._reader._process.idle_queues) == 1


def test_a_closed_device_leaves_its_queue_to_the_next(
    three_files: tuple[list[tuple[Path, int]], Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    destroyed: list[request_queue.Queue] = []
    monkeypatch.setattr(request_queue.Queue, "destroy", lambda queue: destroyed.append(queue))
    monkeypatch.setattr(request_queue, "_spares", request_queue._Spares())
    used = set()
    for _ in range(3):
        with FileDevice(three_files[0], 4096) as device:
            used.add(device._reader._process.idle_queues[0].handle)
            frames = device.allocate(241)
            device.read(np.arange(241), frames)
            assert (frames == three_files[1]).all()
    assert len(used) == 1
    # queues of another depth are not given out, and not all are kept
    for depth in range(17, 35):
        FileDevice(three_files[0], 4096, depth=depth).close()
    assert len(destroyed) == 3
    assert len(request_queue._spares._queues) == request_queue._Spares.MOST
    assert destroyed[0].handle in used
    monkeypatch.undo()
    for queue in destroyed:
        queue.destroy()


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileDevice([(tmp_path / "nothing", 1)], 4096)
