"""XXH64 is Spark's: frozen answers of Spark, a second implementation, and Spark itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.relation.keys.xxhash import hash_bytes, hash_ints, hash_longs, hash_unscaled, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)


def of_ints(values: Sequence[int]) -> list[int]:
    running = start(len(values))
    hash_ints(np.array(values, dtype=np.int64), None, running)
    return running.view(np.int64).tolist()


def of_longs(values: Sequence[int]) -> list[int]:
    running = start(len(values))
    hash_longs(np.array(values, dtype=np.int64), None, running)
    return running.view(np.int64).tolist()


def of_bytes(values: Sequence[bytes]) -> list[int]:
    running = start(len(values))
    lengths = np.array([len(value) for value in values], dtype=np.int64)
    data = np.frombuffer(b"".join(values), dtype=np.uint8)
    hash_bytes(data, np.cumsum(lengths) - lengths, lengths, None, running)
    return running.view(np.int64).tolist()


def of_unscaled(values: Sequence[int]) -> list[int]:
    running = start(len(values))
    raw = b"".join(value.to_bytes(32, "little", signed=True) for value in values)
    hash_unscaled(np.frombuffer(raw, dtype=np.uint8).reshape(-1, 32), None, running)
    return running.view(np.int64).tolist()


# What Spark 4.3 answered to: select xxhash64(...)
FROZEN_INTS = {1: -6698625589789238999, -1: 2017008487422258757, 0: 3614696996920510707}
FROZEN_LONGS = {1: -7001672635703045582, 2: -3341702809300393011, 1577836800000000: 7881863312764026046}
FROZEN_STRINGS = {
    "": -7444071767201028348,
    "Spark": -4294468057691064905,
    "é漢字": 490143531525325083,
    "abcdefgh" * 9: -406199469930020233,
}
FROZEN_DECIMALS = {
    0: -8959994473701255385,
    128: 6715097930120473301,
    -128: -7898411661632158123,
    -1234567890123456789012: 2794727827352827620,
    9223372036854775807: -1087258766029903377,
}


def test_frozen_answers_of_spark() -> None:
    assert of_ints(list(FROZEN_INTS)) == list(FROZEN_INTS.values())
    assert of_longs(list(FROZEN_LONGS)) == list(FROZEN_LONGS.values())
    assert of_bytes([text.encode() for text in FROZEN_STRINGS]) == list(FROZEN_STRINGS.values())
    assert of_unscaled(list(FROZEN_DECIMALS)) == list(FROZEN_DECIMALS.values())


def test_columns_are_chained_and_nulls_skipped() -> None:
    """Spark's ``xxhash64(1, 'a', null, 2L)``."""
    running = start(1)
    hash_ints(np.array([1]), None, running)
    one = np.array([1], dtype=np.int64)
    hash_bytes(np.frombuffer(b"a", dtype=np.uint8), one - 1, one, np.array([True]), running)
    hash_ints(np.array([77]), np.array([False]), running)
    hash_longs(np.array([2]), None, running)
    assert running.view(np.int64).tolist() == [3570513804248678426]


def test_no_rows() -> None:
    assert of_ints([]) == of_longs([]) == of_bytes([]) == of_unscaled([]) == []


MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def reference(data: bytes, seed: int = 42) -> int:
    """XXH64 from its specification, in Python's unbounded integers."""

    def rotated(value: int, bits: int) -> int:
        value &= MASK
        return (value << bits | value >> (64 - bits)) & MASK

    def mixed(lane: int, word: int) -> int:
        return rotated(lane + word * P2, 31) * P1 & MASK

    rest = data
    if len(data) >= 32:
        lanes = [seed + P1 + P2, seed + P2, seed, seed - P1]
        while len(rest) >= 32:
            words = struct.unpack("<4Q", rest[:32])
            lanes = [mixed(lane, word) for lane, word in zip(lanes, words, strict=True)]
            rest = rest[32:]
        total = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            total = ((total ^ mixed(0, lane)) * P1 + P4) & MASK
    else:
        total = seed + P5 & MASK
    total = total + len(data) & MASK
    while len(rest) >= 8:
        total = rotated(total ^ mixed(0, struct.unpack("<Q", rest[:8])[0]), 27) * P1 + P4 & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        total = rotated(total ^ struct.unpack("<I", rest[:4])[0] * P1 & MASK, 23) * P2 + P3 & MASK
        rest = rest[4:]
    for byte in rest:
        total = rotated(total ^ byte * P5 & MASK, 11) * P1 & MASK
    total = (total ^ total >> 33) * P2 & MASK
    total = (total ^ total >> 29) * P3 & MASK
    total ^= total >> 32
    return total - (1 << 64) if total >> 63 else total


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_bytes_against_the_specification(values: list[bytes]) -> None:
    assert of_bytes(values) == [reference(value) for value in values]


@given(st.lists(INTS, max_size=10), st.lists(LONGS, max_size=10))
def test_numbers_hash_as_their_bytes(ints: list[int], longs: list[int]) -> None:
    assert of_ints(ints) == [reference(struct.pack("<i", value)) for value in ints]
    assert of_longs(longs) == [reference(struct.pack("<q", value)) for value in longs]


@given(st.lists(st.integers(-(2**255), 2**255 - 1) | LONGS | st.integers(-300, 300), max_size=10))
def test_long_decimals_hash_as_their_shortest_bytes(values: list[int]) -> None:
    def shortest(value: int) -> bytes:
        bits = (value if value >= 0 else ~value).bit_length() + 1
        return value.to_bytes((bits + 7) // 8, "big", signed=True)

    assert of_unscaled(values) == [reference(shortest(value)) for value in values]


@pytest.mark.spark
def test_against_spark(spark: SparkSession) -> None:
    rng = np.random.default_rng(5)
    longs = [*rng.integers(-(2**63), 2**63 - 1, 200).tolist(), 0, -1, 2**63 - 1, -(2**63)]
    texts = ["".join(map(chr, rng.integers(32, 0x2FFF, length))) for length in range(204)]
    frame = spark.createDataFrame(list(zip(longs, texts, strict=True)), "number bigint, text string")
    answers = frame.selectExpr(
        "xxhash64(number) as long",
        "xxhash64(cast(number % 2147483647 as int)) as int",
        "xxhash64(text) as text",
        "xxhash64(cast(text as binary)) as binary",
        "xxhash64(cast(number as decimal(38, 3))) as decimal",
        "number % 2147483647 as small",
    ).collect()
    assert of_longs(longs) == [row["long"] for row in answers]
    assert of_ints([row["small"] for row in answers]) == [row["int"] for row in answers]
    assert of_bytes([text.encode() for text in texts]) == [row["text"] for row in answers]
    assert of_bytes([text.encode() for text in texts]) == [row["binary"] for row in answers]
    assert of_unscaled([number * 1000 for number in longs]) == [row["decimal"] for row in answers]
