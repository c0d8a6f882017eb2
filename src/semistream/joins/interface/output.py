"""The columns of a join's result: the stream's, then R's without the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from semistream.core.arguments import check_text
from semistream.core.errors import ColumnClashError

__all__ = ["has_no_partner", "output_schema", "without_partner"]

_ALONE = b"semistream.without_partner"


def output_schema(
    stream: pa.Schema,
    added: Iterable[pa.Field],
    suffix: str,
    fold: Callable[[str], str] = str,
    prefix: str = "",
) -> pa.Schema:
    """Return the schema of the stream with R's fields ``added``.

    All names of R's columns get ``prefix``; a name that the stream also has gets ``suffix``. R's columns are nullable
    in the result, as in any left join. Two names are equal if ``fold`` returns the same text for them.
    """
    check_text("a part of the names of R's columns in the result", prefix=prefix, suffix=suffix)
    fields = list(stream)
    names = {fold(name): f"the stream's column {name!r}" for name in stream.names}
    for field in added:
        name = prefix + field.name
        if fold(name) in names:
            name += suffix
        if fold(name) in names:
            raise ColumnClashError(
                f"R's column {field.name!r} would be called {name!r} in the result, like {names[fold(name)]}; give "
                f"the join a prefix other than {prefix!r}, or a suffix other than {suffix!r}"
            )
        names[fold(name)] = f"R's column {field.name!r}"
        fields.append(pa.field(name, field.type, nullable=True, metadata=field.metadata))
    return pa.schema(fields)


def without_partner(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a result, marked: the rows of a batch with this schema have no match in R.

    NULLs are not sufficient, because R may contain NULLs. The mark is metadata; otherwise the schema is the same.
    """
    return schema.with_metadata({**(schema.metadata or {}), _ALONE: b""})


def has_no_partner(batch: pa.RecordBatch) -> bool:
    """Return whether the rows of a batch of results have no match in R; this holds for all rows or for none."""
    return _ALONE in (batch.schema.metadata or {})
