"""SQL text from the tables of schema.py, made once at import and kept as prepared statements by SQLite.

Constants are written into the text, so that partial indexes match; parameters are `:name`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, Table, func, literal_column, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.elements import ClauseElement

from agent_lightning.store.schema import metadata

_DIALECT = sqlite.dialect(paramstyle="named")


def sql(statement: ClauseElement) -> str:
    return str(statement.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True})).strip()


def param(name: str) -> ColumnElement[Any]:
    return literal_column(f":{name}")


def params(*names: str) -> dict[str, ColumnElement[Any]]:
    """A value for each column of these names, from the parameter of the same name."""
    return {name: param(name) for name in names}


def new_row(table: Table) -> Insert:
    """Insert with one parameter a column, named as it; SQLite numbers the rows itself."""
    return insert(table).values(**params(*(column.name for column in table.c if column.name != "seq")))


def any_of(name: str) -> Select[Any]:
    """The strings of the JSON list in parameter `name`, for `column.in_(...)`: one text for any number of ids."""
    values = func.json_each(param(name)).table_valued("value")
    return select(values.c.value)


def creation() -> list[str]:
    """The whole schema, for an empty database."""
    made: list[str] = []
    for table in metadata.sorted_tables:
        made.append(sql(CreateTable(table, if_not_exists=True)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made.extend(sql(CreateIndex(index, if_not_exists=True)) for index in indexes)
    return made
