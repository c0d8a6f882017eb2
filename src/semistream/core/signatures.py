"""A function that takes the arguments of another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

__all__ = ["arguments_of"]

P = ParamSpec("P")
T = TypeVar("T")


def arguments_of(other: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the signature of ``other``, for people, editors and type checkers; what it returns is its own.

    >>> def area(width: int, height: int = 2) -> int: return width * height
    >>> @arguments_of(area)
    ... def text(*given, **named) -> str: return f"{area(*given, **named)} m²"
    >>> text(3), list(inspect.signature(text).parameters)
    ('6 m²', ['width', 'height'])
    """

    def give(function: Callable[..., T]) -> Callable[P, T]:
        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(other).replace(return_annotation=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Callable[P, T], function)

    return give
