"""The command line: ``semistream demo · build · inspect · algorithms · bench``."""

from semistream.cli.app import app, main

__all__ = ["app", "main"]
