"""The address and user of a database. The password is kept apart, so that it is never printed or written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from semistream.core.errors import SemistreamError

__all__ = ["DatabaseAddress", "DatabaseError", "has_password"]

_KINDS = {
    "postgresql": "postgresql", "postgres": "postgresql", "mariadb": "mariadb", "mysql": "mariadb", "sqlite": "sqlite",
}  # fmt: skip
_PORTS = {"postgresql": 5432, "mariadb": 3306, "sqlite": 0}
_PASSWORD_VARIABLES = {"postgresql": "PGPASSWORD", "mariadb": "MYSQL_PWD"}


class DatabaseError(SemistreamError, ValueError):
    """A database, table or column is not available, or not in the requested way."""


@dataclass(frozen=True)
class DatabaseAddress:
    """The parts of a database's URL.

    >>> address = DatabaseAddress.parse("postgresql://etl:secret@db.example:6000/sales")
    >>> address
    DatabaseAddress(kind='postgresql', host='db.example', port=6000, user='etl', database='sales')
    >>> str(address)
    'postgresql://etl@db.example:6000/sales'
    >>> DatabaseAddress.parse("sqlite:///var/products.db").database
    '/var/products.db'
    """

    kind: str
    host: str
    port: int
    user: str
    database: str
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls, url: str, password: str | None = None, *, environment: Mapping[str, str] = os.environ
    ) -> DatabaseAddress:
        """Read ``kind://user@host:port/database``, or ``sqlite:///absolute/path``.

        The password is the first of these that is given: the argument, the password in the URL, the variable
        ``PGPASSWORD`` or ``MYSQL_PWD``. Messages never repeat a URL, because it may contain a password.
        """
        try:
            parts = urlsplit(url)
            kind, port = _KINDS[parts.scheme.lower()], parts.port
        except (KeyError, ValueError):
            raise DatabaseError(
                f"a database's address begins with {', '.join(f'{name}://' for name in _KINDS)} and its port is a "
                "number; for example postgresql://user@host:5432/database"
            ) from None
        database = unquote(parts.path) if kind == "sqlite" else unquote(parts.path[1:])
        if not database or parts.query or parts.fragment or (kind == "sqlite" and parts.netloc):
            raise DatabaseError(
                f"the address of a {kind} database is {_form(kind)}, without ? and #; write those as %3F and %23"
            )
        found = password
        if found is None:
            found = unquote(parts.password) if parts.password else environment.get(_PASSWORD_VARIABLES.get(kind, ""))
        return cls(
            kind, parts.hostname or "127.0.0.1", port or _PORTS[kind], unquote(parts.username or ""), database, found
        )

    def __str__(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite://{self.database}"
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{user}{host}:{self.port}/{quote(self.database, safe='')}"


def _form(kind: str) -> str:
    return "sqlite:///absolute/path" if kind == "sqlite" else f"{kind}://user@host:port/database"


def has_password(url: str) -> bool:
    """Return whether a URL contains a password."""
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return False
