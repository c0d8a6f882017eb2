"""Options that give a value to a name, such as ``--type id=string``; each may be repeated."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["named_values"]


def named_values(option: str, texts: Iterable[str] | None, form: str, example: str) -> dict[str, str]:
    """Return the value of each name; ``form`` and ``example`` are for the message if a text has no name or no ``=``.

    >>> named_values("--rename", ["old=new", "sql=a=b"], "NEW", "name=title")
    {'old': 'new', 'sql': 'a=b'}
    >>> named_values("--rename", ["old=new", "old=newer"], "NEW", "name=title")
    Traceback (most recent call last):
    ...
    semistream.cli.relations.csv_files.InputError: --rename names 'old' twice; give it once
    """
    from semistream.cli.relations.csv_files import InputError  # and PyArrow, which `--help` does not need

    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"cannot read {option} {text!r} as NAME={form}; write it like {option} {example}")
        if name in found:
            raise InputError(f"{option} names {name!r} twice; give it once")
        found[name] = value
    return found
