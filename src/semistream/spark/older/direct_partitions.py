"""A shuffle that sends each row to a given partition, with Spark's shuffle by hash.

Spark hashes an integer with Murmur3. For each partition, a number is found whose hash leads there; rows are shuffled by
the number of their partition.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = ["numbers_of_partitions", "to_partition"]

_SEED = np.uint32(42)


def to_partition(df: DataFrame, partitions: int, partition: Column) -> DataFrame:
    """Return the rows with each row in the partition that the expression gives, as ``repartitionById`` does."""
    numbers = F.array(*map(F.lit, numbers_of_partitions(partitions)))
    return df.repartition(partitions, F.get(numbers, partition))


@lru_cache(maxsize=64)
def numbers_of_partitions(partitions: int) -> tuple[int, ...]:
    """Return, for each partition, the smallest number that Spark shuffles to it.

    >>> numbers_of_partitions(4)
    (12, 6, 2, 0)
    """
    count = 8 * partitions
    while True:
        found, first = np.unique(_hashes(count).astype(np.int64) % partitions, return_index=True)
        if found.size == partitions:
            return tuple(first.tolist())
        count *= 2


def _hashes(count: int) -> NDArray[np.int32]:
    """Return Spark's ``hash`` of the integers from 0 to ``count``: Murmur3 of four bytes."""
    word = np.arange(count, dtype=np.uint32) * np.uint32(0xCC9E2D51)
    word = _rotated(word, 15) * np.uint32(0x1B873593)
    mixed = _rotated(word ^ _SEED, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> np.uint32(16))).view(np.int32)


def _rotated(word: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
