"""Commands that pages, examples and messages name are commands, and their options are options of theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from semistream.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / page for page in ("README.md", "CONTRIBUTING.md", "lab/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [path for folder in ("examples", "src", "lab/src") for path in sorted((ROOT / folder).rglob("*.*"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]*)`")
COMMANDS = typer.main.get_command(app)
COMMAND = re.compile(r"\bsemistream ((?:[a-z]+|--)[^\n#;`]*(?:\\\n[^\n#`]*)*)")


def wrong_in(command: str, *, known_only: bool = False) -> str | None:
    """Return what is wrong with a command, as it stands after ``semistream``; None if nothing is."""
    found: Any = COMMANDS
    words = command.replace("\\\n", " ").split()
    first = True
    while hasattr(found, "commands") and words and not words[0].startswith(("-", "…")):
        name = words.pop(0).strip("`'\".,:)")
        if name not in found.commands:
            return None if known_only and first else f"there is no command {name}"
        found, first = found.commands[name], False
    options = {name for part in found.params for name in (*part.opts, *part.secondary_opts)} | {"--help", "-h"}
    for word in words:
        if (option := re.match(r"--[a-z][a-z-]*", word)) and option[0] not in options:
            return f"{found.name} has no {option[0]}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_pages(page: Path) -> None:
    text = page.read_text()
    code = [block for language, block in BLOCK.findall(text) if language in ("", "sh", "text")]
    code += [inline.replace("\n", " ") for inline in INLINE.findall(BLOCK.sub("", text))]
    named = [command for part in code for command in COMMAND.findall(part)]
    assert [(command, wrong) for command in named if (wrong := wrong_in(command)) is not None] == []


def test_commands_that_examples_and_messages_name() -> None:
    wrong = []
    for path in TEXTS:
        if path.suffix in (".py", ".toml", ".yml", ".md", ".ipynb"):
            text = re.sub(r'"\n\s*f?"', "", path.read_text())  # a message that goes on in the next line
            wrong += [
                (path.name, command, found)
                for command in COMMAND.findall(text)
                if (found := wrong_in(command, known_only=True)) is not None
            ]
    assert wrong == []


def test_what_is_no_command_is_found() -> None:
    assert wrong_in("bild a b") == "there is no command bild"
    assert wrong_in("bench peer --rows 3") == "there is no command peer"
    assert wrong_in("build a b --keys id") == "build has no --keys"
    assert wrong_in("is a library", known_only=True) is None
    assert wrong_in("build a b --key id --unique") is None
