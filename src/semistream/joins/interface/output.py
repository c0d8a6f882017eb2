"""The columns of a join's result: the stream's, then R's without the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

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

    All of R's names get ``prefix``; one that the stream has too gets ``suffix``. R's columns may be NULL in the
    result, as in any left join. Names are the same if ``fold`` makes them so.
    """
    fields = list(stream)
    names = {fold(name): f"the stream's column {name!r}" for name in stream.names}
    for field in added:
        name = prefix + field.name
        if fold(name) in names:
            name += suffix
        if fold(name) in names:
            raise ColumnClashError(
                f"R's column {field.name!r} would be called {name!r} in the result, as {names[fold(name)]} is; give "
                f"the join another prefix than {prefix!r}, or another suffix than {suffix!r}"
            )
        names[fold(name)] = f"R's column {field.name!r}"
        fields.append(pa.field(name, field.type, nullable=True, metadata=field.metadata))
    return pa.schema(fields)


def without_partner(schema: pa.Schema) -> pa.Schema:
    """Return a result's schema with a mark on it: the rows of such a batch have no partner in R.

    NULLs alone do not tell, as R may have them too. The mark is metadata: to all others the schema is the same.
    """
    return schema.with_metadata({**(schema.metadata or {}), _ALONE: b""})


def has_no_partner(batch: pa.RecordBatch) -> bool:
    """Return whether a batch of results is of stream tuples without a partner: all of them are, or none is."""
    return _ALONE in (batch.schema.metadata or {})
