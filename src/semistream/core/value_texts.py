"""Printable texts of the values of any column, whatever bytes they contain."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["short", "value_texts"]

_LONGEST = 60
_UNSEEN = (ArithmeticError, LookupError, ValueError, pa.ArrowException)
"""Errors for values that Python cannot represent: bytes that are no text, the year 10,000, an unknown time zone."""


def value_texts(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    r"""Return a text for each value, without control characters; None for NULL. No value raises an error.

    >>> value_texts(pa.array([7, None])), value_texts(pa.array([b"\xff\x00"])), value_texts(pa.array(["a\n"]))
    (['7', None], ['ff00'], ['a\\n'])
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [None if text is None else _printable(text) for chunk in chunks for text in _of(chunk)]


def short(text: str) -> str:
    """Return a text truncated to at most 60 characters."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _of(values: pa.Array) -> list[str | None]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _of(values.dictionary_decode())
    if pa.types.is_string_view(kind):
        return _of(values.cast(pa.string()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        plain = values.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in plain]
    try:
        return [_plain(value) for value in values.to_pylist()]
    except _UNSEEN:
        return [_one(value) for value in values]


def _one(value: pa.Scalar) -> str | None:
    try:
        return _plain(value.as_py())
    except _UNSEEN:
        pass
    try:
        return str(value.cast(pa.string()).as_py())  # Arrow can print years that Python cannot
    except _UNSEEN:
        return str(getattr(value, "value", "?"))


def _plain(value: object) -> str | None:
    return None if value is None else value.hex() if isinstance(value, bytes) else str(value)


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]
