"""Alembic revisions of the store's schema; `versions/` holds one file each."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import StaticPool, create_engine
from sqlalchemy.exc import DBAPIError


def config() -> Config:
    """Alembic's settings for this package's revisions, without an ini file."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return made


def heads() -> list[str]:
    return ScriptDirectory.from_config(config()).get_heads()


def knows(revision: str) -> bool:
    known = {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}
    return revision in known


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring this database to the newest revision in one transaction. Raises sqlite3.Error; nothing is changed then."""
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    settings = config()
    try:
        with engine.connect() as settings.attributes["connection"]:
            connection.execute("BEGIN IMMEDIATE")  # after connecting, which rolls back; SQLAlchemy itself begins none
            command.upgrade(settings, "head")  # commits
    except DBAPIError as error:
        raise (error.orig if isinstance(error.orig, sqlite3.Error) else error) from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
