"""Docstrings as Markdown: literals, tables between lines of ``=``, and indented blocks after ``::``."""

from __future__ import annotations

import re

__all__ = ["as_markdown"]

_RULE = re.compile(r"=+(?:  ?=+)+")


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown; a table has two columns."""
    lines = re.sub(r"``([^`]+)``", r"`\1`", text).split("\n")
    written: list[str] = []
    at = 0
    while at < len(lines):
        if _RULE.fullmatch(lines[at].strip()):
            end = max(n for n in range(at, len(lines)) if _RULE.fullmatch(lines[n].strip()) and _one(lines, at, n))
            rows = [line for line in lines[at:end] if not _RULE.fullmatch(line.strip())]
            written += _table(rows)
            at = end
        elif lines[at].endswith("::"):
            end = at + 1
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
                end += 1
            block = "\n".join(line[4:] for line in lines[at + 1 : end]).strip("\n").replace("`", "")
            written += [lines[at].removesuffix(":"), "", "```text", block, "```", ""]
            at = end - 1
        else:
            written.append(lines[at])
        at += 1
    return "\n".join(written)


def _one(lines: list[str], first: int, last: int) -> bool:
    """Whether no empty line lies between: then both are of one table."""
    return all(line.strip() for line in lines[first:last])


def _table(rows: list[str]) -> list[str]:
    cells = [re.split(r"  +|(?<=`) (?=[^ ,])", row.strip(), maxsplit=1) for row in rows]
    told = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return [told[0], "|---|---|", *told[1:]]
