"""Names of partition folders: ``day=2024-06-01/shop=Köln`` for Parquet, a short plain name for Delta."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from semistream.spark.sinks.sink import SinkError

__all__ = ["FolderLimits", "Naming", "check_folder_names", "check_partitions", "delta_folder", "parquet_folder"]

Naming = Callable[[Mapping[str, pa.Scalar]], str]
"""Returns the folder of a partition, relative to the sink, for its values by column."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Folder name of NULL."""
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""Characters that Hive and Spark escape in folder names. Letters of all scripts stay as they are."""
_LONGEST_PLAIN = 128
"""Bytes of a Delta folder; a hash replaces a longer name. S3 allows 1,024 bytes for a key, ext4 255 for a name."""
_FILE_NAME = 256
"""Bytes reserved for the separator and the file name after a folder."""


@dataclass(frozen=True)
class FolderLimits:
    """Bytes that a file system allows for the name of one folder, and for all partition folders of a file together."""

    name: int
    path: int

    @classmethod
    def of(cls, folder: Path) -> FolderLimits:
        """Return the limits of the file system that holds an existing folder."""
        whole = _limit(folder, "PC_PATH_MAX", 4096) - 1  # the NUL at its end counts
        return cls(_limit(folder, "PC_NAME_MAX", 255), whole - len(os.fsencode(folder)) - 1 - _FILE_NAME)


def check_partitions(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise if rows of a schema cannot be partitioned by these columns."""
    if missing := [name for name in partition_by if name not in schema.names]:
        raise SinkError(f"there is no column {missing[0]!r} to partition by; there are {', '.join(schema.names)}")
    for name in partition_by:
        if pa.types.is_binary(kind := schema.field(name).type) or pa.types.is_large_binary(kind):
            raise SinkError(f"column {name!r} is {kind}, which cannot name a folder; cast it, for example with hex()")
    if partition_by and len(set(partition_by)) == len(schema.names):
        raise SinkError("all columns are partition columns, so no column is left for the files; partition by fewer")


def check_folder_names(partition_by: Sequence[str]) -> None:
    """Raise for columns whose names readers cannot decode from the name of a folder."""
    if odd := [name for name in partition_by if re.search(r"[/=\0]", name)]:
        raise SinkError(
            f"partition column {odd[0]!r} has a '/', '=' or NUL in its name, which no reader can decode from a "
            "folder's name; rename the column, or write to a Delta table"
        )


def parquet_folder(values: Mapping[str, pa.Scalar], limits: FolderLimits) -> str:
    """Return the folder of a partition, from which readers of Hive-style directories decode the values."""
    _refuse_empty(values)
    for name, value in values.items():
        if (text := str(value.as_py())) == _NULL or "\0" in text:
            raise _unreadable(name, value)
    names = [f"{name}={_ESCAPED.sub(_escape, _text(name, value))}" for name, value in values.items()]
    for name, folder in zip(values, names, strict=True):
        if (length := len(folder.encode())) > limits.name:
            raise SinkError(
                f"a row has {_shortened(values[name])} in partition column {name!r}; the folder's name "
                f"would have {length} bytes, but the file system allows {limits.name}. {_REMEDY}"
            )
    whole = "/".join(names)
    if (length := len(whole.encode())) > limits.path:
        shown = ", ".join(f"{name!r}: {_shortened(value)}" for name, value in values.items())
        raise SinkError(
            f"a row has {{{shown}}} in the partition columns; the folders' names would have {length} "
            f"bytes together, but the file system allows {limits.path} below this path. {_REMEDY}"
        )
    return whole


_REMEDY = "Partition by a shorter column, such as left(column, 20) or md5(column), or write to a Delta table"


def delta_folder(values: Mapping[str, pa.Scalar]) -> str:
    """Return a short folder of plain characters. Several partitions may share it: Delta's log holds their values."""
    _refuse_empty(values)
    folder = "/".join(f"{name}={_text(name, value)}" for name, value in values.items())
    plain = re.sub(r"[^A-Za-z0-9=/_.-]", "_", folder)
    return plain if len(plain) <= _LONGEST_PLAIN else hashlib.blake2b(folder.encode(), digest_size=16).hexdigest()


def _text(name: str, value: pa.Scalar) -> str:
    """Return a value as Arrow writes it in a partition folder, without escapes."""
    if not value.is_valid:
        return _NULL
    naming = ds.partitioning(pa.schema([(name, value.type)]), flavor="hive")
    return unquote(naming.format(pc.field(name) == value)[0].removeprefix(f"{name}="))


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _refuse_empty(values: Mapping[str, pa.Scalar]) -> None:
    for name, value in values.items():
        if value.as_py() == "":
            raise _unreadable(name, value)


def _unreadable(name: str, value: pa.Scalar) -> SinkError:
    return SinkError(
        f"a row has {value.as_py()!r} in partition column {name!r}, but readers cannot decode this value from the "
        "name of a folder; write NULL or another text in its place, or partition by other columns"
    )


def _shortened(value: pa.Scalar) -> str:
    text: Any = value.as_py()
    if not isinstance(text, str) or len(text) <= 40:
        return repr(text)
    return f"{text[:37] + '…'!r} ({len(text):,} characters)"


def _limit(folder: Path, name: str, usual: int) -> int:
    try:
        found = os.pathconf(folder, name)
    except (OSError, ValueError):  # a file system that does not report its limits
        return usual
    return found if found > 0 else usual
