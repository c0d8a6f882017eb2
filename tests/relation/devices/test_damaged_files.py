"""Files that are damaged or cut: what is read from them is told, never used."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from page_files import ways, write_pages
from semistream.core.errors import CorruptPageError
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.devices.reader import Method


def damage(path: Path, offset: int, mask: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


@ways
@pytest.mark.parametrize("offset", [0, 7, 8, 11, 12, 31, 32, 2000, 8191])
def test_damage_of_any_byte_is_caught(tmp_path: Path, offset: int, direct: bool, method: Method) -> None:
    path = tmp_path / "p"
    write_pages(path, 40, 8192)
    damage(path, 23 * 8192 + offset, mask=1 << offset % 8)
    with FileDevice([(path, 40)], 8192, direct=direct, method=method, depth=4) as device:
        frames = device.allocate(40)
        for ids in (np.array([23]), np.arange(40), np.random.default_rng(0).permutation(40)):
            frames[:] = 1
            with pytest.raises(CorruptPageError, match=r"page 23 of .*run semistream repair") as caught:
                device.read(ids, frames)
            assert caught.value.page == 23
            assert caught.value.file == str(path)
            assert not frames[: ids.size].any(), "bytes that were not verified were left in the frames"
        others = np.delete(np.arange(40), 23)
        device.read(others, frames)  # the rest can still be read
        assert device.counters.pages == 39


@ways
def test_swapped_pages_are_caught_and_named(tmp_path: Path, direct: bool, method: Method) -> None:
    path = tmp_path / "p"
    frames = write_pages(path, 10, 4096)
    frames[[2, 6]] = frames[[6, 2]]
    frames[8] = 0
    frames.tofile(path)
    with FileDevice([(path, 10)], 4096, direct=direct, method=method) as device:
        with pytest.raises(CorruptPageError, match=r"page 2 of .* it is page 6, misplaced"):
            device.read(np.array([2]), frames := device.allocate(1))
        with pytest.raises(CorruptPageError, match=r"page 8 of .* only zeros"):
            device.read(np.array([8]), frames)


def test_the_page_named_is_the_one_of_its_file(tmp_path: Path) -> None:
    for name in "ab":
        write_pages(tmp_path / name, 5, 4096)
    damage(tmp_path / "b", 3 * 4096 + 99)
    with FileDevice([(tmp_path / "a", 5), (tmp_path / "b", 5)], 4096) as device:
        with pytest.raises(CorruptPageError) as caught:
            device.read(np.arange(10), device.allocate(10))
        assert (caught.value.file, caught.value.page) == (str(tmp_path / "b"), 3)


@ways
@pytest.mark.parametrize("size", [0, 3 * 4096, 4096 * 5 - 1, 4096 * 4 + 700])
def test_a_file_that_is_too_short_is_refused_when_opened(
    tmp_path: Path, size: int, direct: bool, method: Method
) -> None:
    write_pages(tmp_path / "p", 5, 4096)
    os.truncate(tmp_path / "p", size)
    with pytest.raises(CorruptPageError, match=rf"truncated: it has {size} bytes where 5 pages") as caught:
        FileDevice([(tmp_path / "p", 5)], 4096, direct=direct, method=method)
    assert caught.value.page == size // 4096


@ways
@pytest.mark.parametrize("size", [0, 2 * 4096, 4096 * 7 - 1, 4096 * 6 + 700, 4096 * 6 + 512])
def test_a_file_that_is_cut_while_open(tmp_path: Path, size: int, direct: bool, method: Method) -> None:
    path = tmp_path / "p"
    write_pages(path, 8, 4096)
    with FileDevice([(path, 8)], 4096, direct=direct, method=method) as device:
        os.truncate(path, size)
        frames = device.allocate(8)
        with pytest.raises(CorruptPageError, match="is truncated"):
            device.read(np.arange(8), frames)
        assert not frames.any()
        with pytest.raises(CorruptPageError, match=f"page {size // 4096} is not whole") as caught:
            device.read(np.array([size // 4096]), frames)
        assert caught.value.page == size // 4096
