"""Open a database file: settings of the connection, the schema brought forward, and trouble told in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from agent_lightning.errors import SettingError, StoreError
from agent_lightning.store import schema
from agent_lightning.store.statements import creation

Durability = Literal["process", "power"]
MEMORY = ":memory:"
BUSY_MS = 5_000  # how long a write waits for another process
LOG_PAGES = 16_000  # of 4 KiB: the write-ahead log at which the writer moves it itself
_SYNCHRONOUS = {"process": "NORMAL", "power": "FULL"}


def connect(path: str, durability: Durability) -> sqlite3.Connection:
    """A connection without transactions of its own. Raises StoreError."""
    if durability not in _SYNCHRONOUS:
        raise SettingError(f'durability is {durability!r}: "process" or "power" is wanted')
    try:
        if path != MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path, timeout=BUSY_MS / 1000, isolation_level=None, cached_statements=256, check_same_thread=False
        )
        for setting in _pragmas(durability):
            connection.execute(f"PRAGMA {setting}")
    except (sqlite3.Error, OSError) as error:
        raise explain(path, error) from error
    return connection


def address(path: Path) -> str:
    return f"file:{quote(str(path.resolve()))}"


def read_file(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, beside whoever does. Raises sqlite3.Error."""
    db = sqlite3.connect(f"{address(path)}?mode=ro", uri=True, timeout=BUSY_MS / 1000, check_same_thread=False)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return db
    except sqlite3.Error:
        db.close()
        raise


def _pragmas(durability: Durability) -> list[str]:
    return [
        "auto_vacuum = INCREMENTAL",  # of a new file: what `gc` frees can be given back piece by piece
        "journal_mode = WAL",
        f"synchronous = {_SYNCHRONOUS[durability]}",
        "temp_store = MEMORY",
        "cache_size = -32000",
        f"wal_autocheckpoint = {LOG_PAGES}",
        f"journal_size_limit = {LOG_PAGES * 4096}",
    ]


def bring_forward(path: str, connection: sqlite3.Connection) -> None:
    """Create the schema in an empty database, migrate an older one, refuse a newer or foreign one."""
    try:
        _bring_forward(path, connection)
    except sqlite3.Error as error:
        raise explain(path, error) from error


def _bring_forward(path: str, connection: sqlite3.Connection) -> None:
    revision = _revision(path, connection)
    if revision == schema.REVISION:
        return
    if revision is None:
        _create(connection)
        return
    from agent_lightning.store import migrations  # Alembic takes a fifth of a second to import

    if revision and not migrations.knows(revision):
        raise newer(path, revision)
    migrations.upgrade(connection)


def newer(path: str, revision: str) -> StoreError:
    return StoreError(
        f"{path} was written by a newer version of agent-lightning (schema {revision!r}, this one knows up to "
        f"{schema.REVISION!r}): go on with that version (pip install -U agent-lightning), or with a new file; nothing "
        "was changed"
    )


def is_older(path: str, connection: sqlite3.Connection) -> bool:
    """Whether `bring_forward` would change it. Raises StoreError for a file that is newer, foreign or empty."""
    try:
        revision = _revision(path, connection)
    except sqlite3.Error as error:
        raise explain(path, error) from error
    if revision == schema.REVISION:
        return False
    if revision is None:
        raise StoreError(f"{path} is empty: nobody has kept anything in it yet")
    from agent_lightning.store import migrations

    if revision and not migrations.knows(revision):
        raise newer(path, revision)
    return True


def _revision(path: str, connection: sqlite3.Connection) -> str | None:
    """None for an empty database, "" for one whose first migration never ended."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    if "alembic_version" not in tables:
        raise StoreError(f"{path} is a database of another program (tables {sorted(tables)[:5]}): choose another file")
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return "" if row is None else row[0]


def _create(connection: sqlite3.Connection) -> None:
    """In one transaction, and harmless when another process does the same at this moment."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in creation():
            connection.execute(statement)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS alembic_version ("
            "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
        connection.execute("INSERT OR IGNORE INTO alembic_version VALUES (?)", (schema.REVISION,))
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise


def explainer(path: str) -> Callable[[Exception], StoreError]:
    return lambda error: explain(path, error)


def explain(path: str, error: Exception) -> StoreError:
    """What happened to which file, and what to do."""
    text = str(error)
    lowered = text.lower()
    for sign, advice in _ADVICE:
        if sign in lowered:
            return StoreError(f"the store {path}: {text}; {advice}")
    if isinstance(error, OSError):
        return StoreError(f"the store {path} cannot be opened: {error.strerror or text}; choose a folder you may write")
    return StoreError(f"the store {path}: {text}")


_ADVICE = (
    ("disk is full", "nothing of this write was kept: free some space and try again"),
    ("disk i/o error", "nothing of this write was kept: check the disk and its free space"),
    ("is locked", f"another process has been writing for {BUSY_MS // 1000} s: stop it, or wait"),
    ("not a database", "the file is something else or damaged: choose another path or restore a copy"),
    ("malformed", "the file is damaged: restore a copy"),
    ("unable to open", "check that the folder exists and that you may write there"),
    ("readonly", "you may not write this file: change its permissions or choose another path"),
    ("surrogates not allowed", "an id or a name holds text that UTF-8 cannot write: send valid text"),
)
