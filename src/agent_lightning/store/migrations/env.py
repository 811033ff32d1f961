"""Alembic's entry: it runs the revisions on the connection that `upgrade` hands over, or on `sqlalchemy.url`."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine

from agent_lightning.store.schema import metadata


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None, "set sqlalchemy.url to the database, for example sqlite:///store.db"
    with create_engine(url, poolclass=NullPool).connect() as opened:
        migrate(opened)
