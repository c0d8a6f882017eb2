"""Which versions of PySpark are supported. Importing this module checks the installed one, and imports nothing of it.

PySpark that is too old is an error. For PySpark newer than the newest that was tested, there is a warning.
"""

from __future__ import annotations

import re
import sys
import warnings
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

from semistream.core.errors import MissingExtraError, UnsupportedVersionError

__all__ = ["NEWEST", "OLDEST", "check_pyspark"]

OLDEST, NEWEST = (4, 0), (4, 3)
"""The supported versions of PySpark, without their patches."""


def check_pyspark(found: str | None) -> None:
    """Check a version of PySpark; None if there is none.

    Raises
    ------
    MissingExtraError, UnsupportedVersionError
        If PySpark is missing or too old.
    """
    if found is None:
        raise MissingExtraError("pyspark", "spark")
    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    supported = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
    if numbers < OLDEST:
        raise UnsupportedVersionError(
            f"PySpark {found} is installed, but semistream needs {supported}; run: pip install 'semistream[spark]'"
        )
    if numbers > NEWEST:
        warnings.warn(f"PySpark {found} is installed, but semistream was tested with {supported} only", stacklevel=2)


def _installed() -> str | None:
    """Return the version of PySpark, from its file unless PySpark is imported: importing an old one may fail."""
    if (imported := sys.modules.get("pyspark")) is not None:
        return str(imported.__version__)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    written = re.search(r"__version__[^=]*= *[\"']([^\"']+)", Path(spec.origin).with_name("version.py").read_text())
    return None if written is None else written[1]


check_pyspark(_installed())
