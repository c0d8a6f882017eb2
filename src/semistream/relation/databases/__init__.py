"""Tables in SQLite, PostgreSQL and MariaDB, as Arrow batches."""

from __future__ import annotations

from semistream.relation.databases.address import DatabaseAddress, DatabaseError
from semistream.relation.databases.database import Database, TableName
from semistream.relation.databases.database_relation import relation_in_database
from semistream.relation.databases.opening import open_database

__all__ = ["Database", "DatabaseAddress", "DatabaseError", "TableName", "open_database", "relation_in_database"]
