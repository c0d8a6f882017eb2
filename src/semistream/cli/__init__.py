"""The command line: ``semistream demo · build · inspect · run · tune · …``."""

from semistream.cli.app import app, main

__all__ = ["app", "main"]
