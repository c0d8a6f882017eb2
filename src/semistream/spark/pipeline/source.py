"""The source of a pipeline as a streaming DataFrame, and the handling of its malformed rows.

::

    files, messages ──▶ rows, and the text of rows that do not fit the schema ──▶ counted
                                                        fail        │ the query stops, and the error shows the row
                                                        dead_letter │ marked, like rows without a match
                                                        drop        │ left out
                                                        null        ▼ kept, with NULLs
"""

from __future__ import annotations

from collections.abc import Mapping

import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.errors import SemistreamError
from semistream.spark.joining.missing import with_marker
from semistream.spark.monitoring.listening import MALFORMED, SOURCE
from semistream.spark.pipeline.csv_tables import CSV, TIMES, CsvError, failing, header_of, in_order_of, with_defaults
from semistream.spark.pipeline.parquet_types import mistyped
from semistream.spark.pipeline.plan import FILES, SourcePlan
from semistream.spark.relations.key_expressions import quoted

__all__ = ["LETTER_TEXT", "SourceError", "read_source"]

LETTER_TEXT = "malformed"
"""Column of dead letters that contains the text of a malformed row."""

_TEXT = "__malformed"
_CORRUPT = "columnNameOfCorruptRecord"
_REMEDY = "correct it, or set in [source] what to do with such rows: on_malformed = 'dead_letter', 'drop' or 'null'"


class SourceError(SemistreamError, ValueError):
    """The rows of a source do not match the file; ``key`` is the wrong key in ``[source]``."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def read_source(spark: SparkSession, plan: SourcePlan, letter_text: str) -> DataFrame:
    """Return the rows of a source, with the additional column ``letter_text`` if there are dead letters."""
    if plan.on_malformed is None or plan.schema is None:
        return _checked(_plain(spark, plan))
    schema = st.StructType.fromDDL(plan.schema)
    assert isinstance(schema, st.StructType)
    own = _given(plan.options, _CORRUPT) or "_corrupt_record"
    text = own if own in schema.names else _TEXT
    if plan.format == "kafka":
        frame, where = _messages(spark, plan, schema, text), _offset()
    else:
        frame, where = _files(spark, plan, schema, text), F.input_file_name()
    names = [name for name in schema.names if name != _TEXT]
    if plan.on_malformed == "fail":
        return _checked(failing(frame, text, where, _REMEDY).select(*map(quoted, names)))
    frame = frame.observe(SOURCE, F.count(quoted(text)).alias(MALFORMED))
    if plan.on_malformed == "drop":
        frame = frame.where(quoted(text).isNull())
    elif plan.on_malformed == "dead_letter":
        if LETTER_TEXT in names:
            raise SourceError(
                f"dead letters have the text of a malformed row in a column {LETTER_TEXT!r}, but the stream has a "
                "column of that name; rename it",
                "schema",
            )
        frame = frame.select(*map(quoted, names), quoted(text).alias(letter_text))
        return _checked(with_marker(frame, F.when(quoted(letter_text).isNotNull(), F.lit("source"))))
    return _checked(frame.select(*map(quoted, names)))


def _plain(spark: SparkSession, plan: SourcePlan) -> DataFrame:
    reader = spark.readStream.format(plan.format).options(**plan.options)
    if plan.schema is not None:
        reader = reader.schema(plan.schema)
        if plan.format == "parquet" and plan.path is not None:
            declared = st.StructType.fromDDL(plan.schema)
            assert isinstance(declared, st.StructType)
            if told := mistyped(spark, plan.path, declared, plan.options):
                raise SourceError("; ".join(told), "schema")
    elif plan.format in FILES and plan.format != "text":
        # Spark does not infer the schema of a stream; the schema is that of the existing files.
        reader = reader.schema(spark.read.format(plan.format).load(plan.path).schema)
    return reader.load(plan.path) if plan.path else reader.load()


def _files(spark: SparkSession, plan: SourcePlan, schema: st.StructType, text: str) -> DataFrame:
    """Return the rows of CSV or JSON files, and the text of malformed rows."""
    assert plan.path is not None
    given = {name: value for name, value in plan.options.items() if name.lower() != _CORRUPT.lower()}
    options = with_defaults({**given, _CORRUPT: text}, CSV if plan.format == "csv" else TIMES)
    if plan.format == "csv":
        schema = _by_header(spark, plan, schema, options)
    if text not in schema.names:
        schema = st.StructType([*schema.fields, st.StructField(text, st.StringType())])
    return spark.readStream.format(plan.format).schema(schema).options(**options).load(plan.path)


def _by_header(
    spark: SparkSession, plan: SourcePlan, schema: st.StructType, options: Mapping[str, str]
) -> st.StructType:
    """Return the columns in the order of the existing files, or in the plan's order if there are no files.

    Spark compares the names with the header of each file, so a file with another order fails the query.
    """
    assert plan.path is not None
    named = (_given(options, "header") or "false").lower() == "true"
    own = _given(options, _CORRUPT)
    wanted = st.StructType([field for field in schema.fields if field.name != own])
    try:
        header = header_of(spark, plan.path, options)
        if header is None:
            return schema
        if named:
            found = in_order_of(header, wanted, options, plan.path)
            return st.StructType([*found.fields, *(field for field in schema.fields if field.name == own)])
    except CsvError as error:
        raise SourceError(str(error), "schema") from None
    if sorted(header) == sorted(wanted.names):
        raise SourceError(
            f"the first line of the files in {plan.path} has the names of the columns; read it as a header: "
            "options = { header = true }",
            "options",
        )
    return schema


def _messages(spark: SparkSession, plan: SourcePlan, schema: st.StructType, text: str) -> DataFrame:
    """Return the fields of JSON messages, their origin, and the text of malformed messages."""
    if text not in schema.names:
        schema = st.StructType([*schema.fields, st.StructField(text, st.StringType())])
    messages = spark.readStream.format("kafka").options(**plan.options).load()
    message = F.col("value").cast("string")
    parsed = F.from_json(message, schema, {**TIMES, _CORRUPT: text})
    frame = messages.select("topic", "partition", "offset", message.alias("__message"), parsed.alias("__value"))
    # Spark treats a missing and an empty message as neither JSON nor malformed.
    nothing = F.when(F.col("__value").isNull(), F.coalesce(F.col("__message"), F.lit("NULL")))
    fields = [F.col("__value")[name].alias(name) for name in schema.names if name != text]
    found = F.coalesce(F.col("__value")[text], nothing).alias(text)
    return frame.select(*fields, found, *(F.col(name).alias(f"__{name}") for name in ("topic", "partition", "offset")))


def _offset() -> Column:
    return F.concat(
        F.lit("topic "), F.col("__topic"), F.lit(", partition "), F.col("__partition").cast("string"),
        F.lit(", offset "), F.col("__offset").cast("string"),
    )  # fmt: skip


def _given(options: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def _checked(frame: DataFrame) -> DataFrame:
    """Return ``frame`` after Spark has analysed it; Spark Connect delays that until the schema is requested."""
    frame.schema  # noqa: B018
    return frame
