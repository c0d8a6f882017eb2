"""CSV files in Spark, read by the same rules as without Spark (`semistream.cli.relations.csv_files`).

Spark's defaults differ in many ways: a quoted empty field is NULL, a doubled quote is not one quote, a value ends at
the end of its line, ``2024`` is a date, the seventh digit of a second is truncated, columns are matched by position
instead of by the header, and a row that does not fit becomes NULLs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.arguments import nearest
from semistream.core.errors import SemistreamError
from semistream.spark.relations.types import spark_type

__all__ = ["CSV", "TIMES", "CsvError", "failing", "header_of", "in_order_of", "read_csv", "with_defaults"]

TIMES = {
    "timestampFormat": "yyyy-MM-dd[[ ]['T']HH:mm[:ss[.SSSSSS]][XXX][XX][X]]",
    "timestampNTZFormat": "yyyy-MM-dd[[ ]['T']HH:mm[:ss[.SSSSSS]]]",
    "dateFormat": "yyyy-MM-dd",
}
"""Options for CSV and JSON: a text that does not fit its type is malformed, where Spark would truncate or guess."""

_NO_TEXT = "\x00"
CSV = {
    "escape": '"',
    "multiLine": "true",
    "enforceSchema": "false",  # Spark compares names, not positions, with the header of each file
    "nullValue": _NO_TEXT,  # any text that is not empty lets Spark distinguish an empty field from a quoted empty one
    **TIMES,
}
"""Options for CSV."""

_MALFORMED = "__malformed"
_SHOWN = 200


class CsvError(SemistreamError, ValueError):
    """The header of a file does not match the table."""


def with_defaults(given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the given options, with defaults for the others; names of options ignore case.

    >>> with_defaults({"ESCAPE": "x"}, {"escape": "y", "sep": ","})
    {'sep': ',', 'ESCAPE': 'x'}
    """
    names = {name.lower() for name in given}
    return {name: value for name, value in defaults.items() if name.lower() not in names} | dict(given)


def header_of(spark: SparkSession, path: str, options: Mapping[str, str]) -> list[str] | None:
    """Return the names in the first line of the existing files, or None if there are no files."""
    try:
        names = spark.read.options(**{**options, "header": "true"}).csv(path).columns
    except AnalysisException:
        return None
    # Spark appends the column's number to names that occur twice.
    bare = [name.removesuffix(str(number)).lower() for number, name in enumerate(names)]
    for number, name in enumerate(names):
        if name.lower() != bare[number] and bare.count(bare[number]) > 1 and name.lower() not in bare:
            first = name.removesuffix(str(number))
            if first:
                raise CsvError(f"{path} has two columns called {first!r}; give each its own name")
    return names or None


def in_order_of(header: Sequence[str], schema: st.StructType, options: Mapping[str, str], path: str) -> st.StructType:
    """Return the columns in the order of the files; columns that ``schema`` does not name are texts.

    Raises
    ------
    CsvError
        If the files lack a column.
    """
    named = {field.name: field for field in schema.fields}
    for name in named:
        if name not in header:
            hint = nearest(name, header, f"there are {', '.join(header)}")
            raise CsvError(f"the header of {path} has no column {name!r}; {hint}")
    null = next(value for name, value in options.items() if name.lower() == "nullvalue")
    # Spark calls a column without a name _c and its number; in the header it reads the text that means NULL.
    unnamed = [name for number, name in enumerate(header) if name == f"_c{number}" and name not in named]
    if len(unnamed) > 1:
        raise CsvError(f"{path} has {len(unnamed)} columns without a name; give each a name")
    return st.StructType([
        named.get(name, st.StructField(null if name in unnamed else name, st.StringType())) for name in header
    ])  # fmt: skip


def failing(frame: DataFrame, malformed: str, where: Column, remedy: str) -> DataFrame:
    """Return a frame that fails at the first row whose column ``malformed`` is not NULL."""
    text = F.regexp_replace(F.substring(F.col(malformed), 1, _SHOWN), r"\s+", " ")
    told = F.concat(
        F.lit("semistream.MalformedRowError: "), where, F.lit(": this row is malformed: "), text, F.lit(f"; {remedy}")
    )
    sound = F.when(F.col(malformed).isNotNull(), F.raise_error(told).cast("boolean")).otherwise(F.lit(True))
    return frame.where(sound)


def read_csv(
    spark: SparkSession,
    paths: Sequence[str],
    known: Mapping[str, pa.DataType],
    types: Mapping[str, pa.DataType] | None = None,
    *,
    null: str | None = None,
) -> DataFrame:
    """Return the rows of files, each of which has its own header. A row that does not fit fails the job.

    Parameters
    ----------
    known
        The columns to read, if they exist.
    types
        Other types for some columns; these must exist.
    null
        A text that means NULL, in addition to an empty field.
    """
    options = with_defaults({} if null is None else {"nullValue": null}, CSV) | {"header": "true"}
    options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
    given = {**known, **(types or {})}
    alike: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        header = header_of(spark, path, options)
        if header is None:
            raise CsvError(f"{path} cannot be read as CSV: it has no header")
        alike.setdefault(tuple(header), []).append(path)
    parts = []
    for names, files in alike.items():
        wanted = [name for name in names if name in given]
        named = [*wanted, *(name for name in types or () if name not in wanted)]
        schema = st.StructType([st.StructField(name, spark_type(name, given[name])) for name in named])
        read = in_order_of(names, schema, options, files[0]).add(_MALFORMED, st.StringType())
        frame = spark.read.schema(read).options(**options).csv(files)
        fitting = ", ".join(f"{name} {schema[name].dataType.simpleString()}" for name in wanted)
        frame = failing(frame, _MALFORMED, F.input_file_name(), f"the columns are {fitting}")
        parts.append(frame.select(*(F.col(f"`{name.replace('`', '``')}`") for name in wanted)))
    return reduce(DataFrame.unionByName, parts)
