"""Opens a database by its address."""

from __future__ import annotations

from semistream.core.errors import MissingExtraError
from semistream.relation.databases.address import DatabaseAddress
from semistream.relation.databases.database import Database

__all__ = ["open_database"]


def open_database(address: str | DatabaseAddress, password: str | None = None) -> Database:
    """Return the database at an address. It does not connect yet.

    Parameters
    ----------
    address
        ``postgresql://user@host:port/database``, ``mariadb://…``, or ``sqlite:///absolute/path``.
    password
        The password. Give it here or in ``PGPASSWORD`` or ``MYSQL_PWD`` rather than in the address.

    Examples
    --------
    >>> open_database("mariadb://etl@db.example/sales")
    MariaDB(mariadb://etl@db.example:3306/sales)
    """
    where = address if isinstance(address, DatabaseAddress) else DatabaseAddress.parse(address, password)
    try:
        if where.kind == "postgresql":
            from semistream.relation.databases.postgresql import PostgreSQL

            return PostgreSQL(where)
        if where.kind == "mariadb":
            from semistream.relation.databases.mariadb import MariaDB

            return MariaDB(where)
        from semistream.relation.databases.sqlite import SQLite

        return SQLite(where)
    except ImportError as error:
        raise MissingExtraError(error.name or "a database driver", "sql") from None
