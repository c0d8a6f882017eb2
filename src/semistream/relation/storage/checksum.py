"""The checksum that every page carries in its first eight bytes.

```
byte 0        8                                   page_bytes
     +--------+----------------------------------------+
     | u64    | u32 page id | ... the rest of the page |
     +--------+----------------------------------------+
      checksum  <------------- covered -------------->
```

The idea: eight independent 64-bit lanes consume a page in stripes of 64 bytes. Each step is
``lane = rotate(lane ^ word, 29) * odd``. The word is also added to the neighbouring lane, which rotates by a different
number. A single lane would wait for its multiplication most of the time. Eight lanes keep the multiplier busy, so a
page in the processor's cache is checked many times faster than a device can deliver it. Without the second lane, a
flipped bit that ends up in the highest position stays a single bit, and one flipped bit of the word eight positions
further on cancels it. The first format of relations, which can still be read, has this weakness.

What it guarantees: every step is invertible, in the lane and in the word. So are the folding of the lanes and the
final mix. A difference of any kind goes unnoticed with a probability of 2⁻⁶⁴; tests try every bit and every two bits
of pages. The first word is replaced by the page's id within its file, mixed with a hash of the file's name. So a page
that was written to, or read from, the wrong place or the wrong file does not pass either. The checksum is no defence
against an adversary.

Words are read in the byte order of the machine. Files are little-endian, as on every platform that Arrow supports.

Example
-------
>>> import numpy as np
>>> frames = np.zeros((2, 4096), np.uint8)
>>> seal(frames, first_id=7)
>>> verify(frames, np.array([7, 8]))
-1
>>> frames[1, 1000] ^= 1
>>> verify(frames, np.array([7, 8]))
1
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import Int, frozen, kernel

__all__ = ["checksum_words", "file_seed", "first_bad_page", "flipped_bit", "page_checksum", "seal", "verify"]

# Odd, so that multiplication by them is invertible, and with evenly spread bits: fractions of the golden ratio and of
# square roots of small primes.
_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(0x6A09E667F3BCC909)
_LANE_1 = np.uint64(0xBB67AE8584CAA73B)
_LANE_2 = np.uint64(0x3C6EF372FE94F82B)
_LANE_3 = np.uint64(0xA54FF53A5F1D36F1)
_LANE_4 = np.uint64(0x510E527FADE682D1)
_LANE_5 = np.uint64(0x9B05688C2B3E6C1F)
_LANE_6 = np.uint64(0x1F83D9ABFB41BD6B)
_LANE_7 = np.uint64(0x5BE0CD19137E2179)
_LEFT, _RIGHT = np.uint64(29), np.uint64(35)
_ODD_LEFT, _ODD_RIGHT = np.uint64(47), np.uint64(17)
_HALF = np.uint64(32)
_ALL = np.uint64(2**64 - 1)


@kernel
def _step(lane: np.uint64, word: np.uint64) -> np.uint64:
    mixed = lane ^ word
    return ((mixed << _LEFT) | (mixed >> _RIGHT)) * _MULTIPLY


@kernel
def _odd_step(lane: np.uint64, word: np.uint64) -> np.uint64:
    mixed = lane ^ word
    return ((mixed << _ODD_LEFT) | (mixed >> _ODD_RIGHT)) * _MULTIPLY


@kernel
def _fold(total: np.uint64, lane: np.uint64) -> np.uint64:
    # The shift moves high bits down; a multiplication alone only carries bits up.
    mixed = (total ^ lane) * _FOLD
    return mixed ^ (mixed >> _HALF)


@kernel
def _bound_checksum(words: NDArray[np.uint64], seed: np.uint64) -> np.uint64:
    lane0, lane1, lane2, lane3 = seed, _LANE_1, _LANE_2, _LANE_3
    lane4, lane5, lane6, lane7 = _LANE_4, _LANE_5, _LANE_6, _LANE_7
    mask = np.uint64(0)  # masks the checksum itself
    count = words.size
    stripes = count - count % 8
    for i in range(0, stripes, 8):
        word0, word1, word2, word3 = words[i] & mask, words[i + 1], words[i + 2], words[i + 3]
        word4, word5, word6, word7 = words[i + 4], words[i + 5], words[i + 6], words[i + 7]
        lane0 = _step(lane0, word0) + word1
        lane1 = _odd_step(lane1, word1) + word0
        lane2 = _step(lane2, word2) + word3
        lane3 = _odd_step(lane3, word3) + word2
        lane4 = _step(lane4, word4) + word5
        lane5 = _odd_step(lane5, word5) + word4
        lane6 = _step(lane6, word6) + word7
        lane7 = _odd_step(lane7, word7) + word6
        mask = _ALL
    total = _fold(_fold(_fold(_fold(np.uint64(count), lane0), lane1), lane2), lane3)
    total = _fold(_fold(_fold(_fold(total, lane4), lane5), lane6), lane7)
    for i in range(stripes, count):  # pages of 8·k bytes that do not fill their last stripe
        total = _fold(total, words[i])
    return _fold(total, np.uint64(0))


@kernel
def _first_format_checksum(words: NDArray[np.uint64], seed: np.uint64) -> np.uint64:
    # Lane 0 starts with seed ^ word 0, so that consuming word 0 leaves the seed; the loop needs no special case.
    lane0, lane1, lane2, lane3 = seed ^ words[0], _LANE_1, _LANE_2, _LANE_3
    lane4, lane5, lane6, lane7 = _LANE_4, _LANE_5, _LANE_6, _LANE_7
    count = words.size
    stripes = count - count % 8
    for i in range(0, stripes, 8):
        lane0 = _step(lane0, words[i])
        lane1 = _step(lane1, words[i + 1])
        lane2 = _step(lane2, words[i + 2])
        lane3 = _step(lane3, words[i + 3])
        lane4 = _step(lane4, words[i + 4])
        lane5 = _step(lane5, words[i + 5])
        lane6 = _step(lane6, words[i + 6])
        lane7 = _step(lane7, words[i + 7])
    total = _fold(_fold(_fold(_fold(np.uint64(count), lane0), lane1), lane2), lane3)
    total = _fold(_fold(_fold(_fold(total, lane4), lane5), lane6), lane7)
    for i in range(stripes, count):  # pages of 8·k bytes that do not fill their last stripe
        total = _fold(total, words[i])
    return _fold(total, np.uint64(0))


@kernel
def checksum_words(words: NDArray[np.uint64], page: Int, seed: np.uint64) -> np.uint64:
    """Return the checksum of a page given as 64-bit words. Word 0, which holds the checksum, is ignored.

    A seed of 0 selects the first format, whose pages are not bound to a file.
    """
    if seed == np.uint64(0):
        return _first_format_checksum(words, np.uint64(page))
    return _bound_checksum(words, seed ^ np.uint64(page))


def page_checksum(page: NDArray[np.uint8], page_id: int, seed: int = 0) -> int:
    """Return the checksum of ``page`` from byte 8 on. The page is contiguous, a multiple of 8 bytes and at least 64.

    Parameters
    ----------
    page
        The page. Its first eight bytes are ignored.
    page_id
        The page's id within its file.
    seed
        The `file_seed` of its file, or 0 for the first format.
    """
    return int(checksum_words(frozen(page.view(np.uint64)), page_id, np.uint64(seed)))


@kernel
def first_bad_page(words: NDArray[np.uint64], ids: NDArray[np.int64], seed: np.uint64) -> int:
    """Return the first i for which ``words[i]`` is not page ``ids[i]`` as sealed, or -1."""
    for i in range(ids.size):
        if checksum_words(words[i], ids[i], seed) != words[i, 0]:
            return i
    return -1


@kernel
def _seal(words: NDArray[np.uint64], first_id: int, seed: np.uint64) -> None:
    for i in range(words.shape[0]):
        # Little-endian: bytes 8..12 are the low half of word 1.
        words[i, 1] = (words[i, 1] >> _HALF << _HALF) | np.uint64(first_id + i)
        words[i, 0] = checksum_words(words[i], first_id + i, seed)


@kernel
def _flipped_bit(words: NDArray[np.uint64], page: int, seed: np.uint64) -> int:
    stored = words[0]
    difference = checksum_words(words, page, seed) ^ stored
    found = -1
    for bit in range(64):
        if difference == np.uint64(1) << np.uint64(bit):
            found = bit
    for word in range(1, words.size):
        for bit in range(64):
            mask = np.uint64(1) << np.uint64(bit)
            words[word] ^= mask
            fits = checksum_words(words, page, seed) == stored
            words[word] ^= mask
            if fits and found >= 0:
                return -1
            if fits:
                found = word * 64 + bit
    return found


def flipped_bit(page: NDArray[np.uint8], page_id: int, seed: int = 0) -> int:
    """Return the one bit by which ``page`` differs from the sealed page, or -1 if the damage is not one flipped bit.

    Tries every bit. A page with any other damage is mistaken for one with a single flipped bit less often than once in
    2⁴⁰. The parameters are those of `page_checksum`.

    >>> frames = np.zeros((1, 512), np.uint8)
    >>> seal(frames, first_id=7)
    >>> frames[0, 100] ^= 8
    >>> flipped_bit(frames[0], 7)
    803
    """
    return int(_flipped_bit(page.copy().view(np.uint64), page_id, np.uint64(seed)))


def file_seed(name: str) -> int:
    """Return the seed that binds pages to the file of that name. Their checksums combine it with the page id."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") | 1 << 63  # never 0


def _as_words(frames: NDArray[np.uint8]) -> NDArray[np.uint64]:
    if frames.ndim != 2 or frames.dtype != np.uint8 or not frames.flags.c_contiguous:
        raise ValueError(
            f"pages must be a contiguous (pages, bytes) array of uint8, not {frames.dtype} of shape"
            f" {frames.shape} with strides {frames.strides}; copy it with np.ascontiguousarray"
        )
    if frames.shape[1] < 64 or frames.shape[1] % 8:
        raise ValueError(f"a page of {frames.shape[1]} bytes cannot carry a checksum; use a multiple of 8, at least 64")
    return frames.view(np.uint64)


def seal(frames: NDArray[np.uint8], first_id: int, seed: int = 0) -> None:
    """Write id and checksum into consecutive pages, in place.

    Parameters
    ----------
    frames
        One page per row.
    first_id
        The id, within its file, of the page in the first row. Ids have 32 bits.
    seed
        The `file_seed` of the pages' file. 0 binds them to no file, as in the first format.
    """
    words = _as_words(frames)
    if not 0 <= first_id <= 2**32 - max(len(frames), 1):
        raise ValueError(f"page ids {first_id}..{first_id + len(frames) - 1} do not fit into 0..{2**32 - 1}")
    _seal(words, first_id, np.uint64(seed))


def verify(frames: NDArray[np.uint8], ids: NDArray[np.int64], seed: int = 0) -> int:
    """Return the first row of ``frames`` that is not page ``ids[row]`` as written by `seal`, or -1."""
    words = frozen(_as_words(frames))
    if ids.shape != (len(frames),):
        raise ValueError(f"{len(frames)} pages need as many ids, not an array of shape {ids.shape}")
    return first_bad_page(words, frozen(ids.astype(np.int64, copy=False)), np.uint64(seed))
