"""The page checksum: every small damage is caught, wherever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semistream.relation.storage.checksum import file_seed, flipped_bit, page_checksum, seal, verify

SEED = file_seed("shard.pages")


def sealed(pages: int, page_bytes: int, first_id: int = 0, seed: int = 0) -> NDArray[np.uint8]:
    frames = np.random.default_rng(seed).integers(0, 256, (pages, page_bytes), dtype=np.uint8)
    seal(frames, first_id)
    return frames


@pytest.mark.parametrize("page_bytes", [64, 72, 120, 128, 512, 1000, 4096, 8192, 65536])
def test_sealed_pages_pass_and_carry_their_id(page_bytes: int) -> None:
    frames = sealed(5, page_bytes, first_id=11)
    assert verify(frames, np.arange(11, 16)) == -1
    assert frames[:, 8:12].copy().view(np.uint32).ravel().tolist() == [11, 12, 13, 14, 15]


@pytest.mark.parametrize("page_bytes", [64, 104, 512])
@pytest.mark.parametrize("fill", ["zeros", "random"])
@pytest.mark.parametrize("seed", [0, SEED])
def test_every_single_flipped_bit_is_caught(page_bytes: int, fill: str, seed: int) -> None:
    frames = np.zeros((1, page_bytes), np.uint8) if fill == "zeros" else sealed(1, page_bytes)
    seal(frames, 3, seed)
    ids = np.array([3])
    for bit in range(page_bytes * 8):
        frames[0, bit // 8] ^= 1 << bit % 8
        assert verify(frames, ids, seed) == 0, f"bit {bit}"
        frames[0, bit // 8] ^= 1 << bit % 8
    assert verify(frames, ids, seed) == -1


@pytest.mark.parametrize("fill", ["zeros", "random"])
def test_no_two_flipped_bits_hide_each_other(fill: str) -> None:
    """Pages that differ from one page in a bit each differ from each other in two: all have checksums of their own."""
    page = np.zeros(1024, np.uint8) if fill == "zeros" else sealed(1, 1024)[0]
    found = set()
    for bit in range(64, 8 * page.size):
        page[bit // 8] ^= 1 << bit % 8
        found.add(page_checksum(page, 3, SEED))
        page[bit // 8] ^= 1 << bit % 8
    assert len(found) == 8 * page.size - 64


def test_a_page_of_another_file_is_caught() -> None:
    frames = sealed(3, 512)
    seal(frames, 0, SEED)
    assert verify(frames, np.arange(3), SEED) == -1
    assert verify(frames, np.arange(3), file_seed("shard.delta")) == 0
    assert verify(frames, np.arange(3)) == 0


@pytest.mark.parametrize("bit", [0, 63, 64, 2943, 4095])
def test_a_single_flipped_bit_is_found(bit: int) -> None:
    frames = sealed(1, 512)
    seal(frames, 5, SEED)
    assert flipped_bit(frames[0], 5, SEED) == -1, "nothing is wrong"
    frames[0, bit // 8] ^= 1 << bit % 8
    assert flipped_bit(frames[0], 5, SEED) == bit
    frames[0, 17] ^= 2
    assert flipped_bit(frames[0], 5, SEED) == -1, "two bits"


def test_a_bit_that_the_first_format_cannot_tell_is_not_guessed() -> None:
    frames = sealed(1, 512)
    frames[0, 367] ^= 128  # the highest bit of word 45, which bit 34 of word 37 would hide
    assert flipped_bit(frames[0], 0) == -1


@given(data=st.data())
def test_any_change_is_caught(data: st.DataObject) -> None:
    frames = sealed(1, 1024, first_id=9)
    begin = data.draw(st.integers(0, 1023))
    bytes_ = data.draw(st.binary(min_size=1, max_size=1024 - begin))
    damaged = frames.copy()
    damaged[0, begin : begin + len(bytes_)] = np.frombuffer(bytes_, np.uint8)
    assert (verify(damaged, np.array([9])) == -1) == bool((damaged == frames).all())


def test_swapped_words_and_swapped_stripes_are_caught() -> None:
    frames = sealed(1, 8192)
    words = frames.view(np.uint64)
    for i, j in [(1, 2), (1, 9), (8, 16), (8, 1016), (500, 501)]:
        words[0, [i, j]] = words[0, [j, i]]
        assert verify(frames, np.array([0])) == 0, (i, j)
        words[0, [i, j]] = words[0, [j, i]]


def test_a_page_in_the_wrong_place_is_caught_and_the_first_one_is_named() -> None:
    frames = sealed(6, 512, first_id=100)
    frames[[2, 4]] = frames[[4, 2]]
    assert verify(frames, np.arange(100, 106)) == 2
    assert verify(frames, np.array([100, 101, 104, 103, 102, 105])) == -1


def test_a_page_that_was_never_written_is_caught() -> None:
    assert verify(np.zeros((1, 8192), np.uint8), np.array([0])) == 0
    assert verify(np.full((1, 8192), 255, np.uint8), np.array([2**32 - 1])) == 0


def test_checksum_ignores_its_own_place_and_depends_on_the_seed() -> None:
    page = sealed(1, 4096)[0]
    before = page_checksum(page, 0)
    page[:8] = 7
    assert page_checksum(page, 0) == before
    assert len({int(page_checksum(page, seed)) for seed in range(1000)}) == 1000


def test_checksums_of_similar_pages_are_spread() -> None:
    """Pages that differ in one small counter: each of the 64 bits is set in about half of their checksums."""
    page = np.zeros(512, np.uint8)
    sums = np.zeros(2000, np.uint64)
    for i in range(sums.size):
        page[100:104] = np.frombuffer(np.uint32(i).tobytes(), np.uint8)
        sums[i] = page_checksum(page, 0)
    assert np.unique(sums).size == sums.size
    share = np.unpackbits(sums.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert ((share > 0.44) & (share < 0.56)).all(), share


@pytest.mark.parametrize("shape", [(2, 60), (2, 56), (2, 100), (4096,)])
def test_sizes_that_cannot_carry_a_checksum_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"multiple of 8|contiguous"):
        seal(np.zeros(shape, np.uint8), 0)


def test_arguments_that_do_not_fit_are_refused() -> None:
    frames = np.zeros((2, 512), np.uint8)
    with pytest.raises(ValueError, match="do not fit into"):
        seal(frames, 2**32 - 1)
    with pytest.raises(ValueError, match="as many ids"):
        verify(frames, np.arange(3))
    with pytest.raises(ValueError, match="ascontiguousarray"):
        seal(np.zeros((4, 512), np.uint8)[::2], 0)
