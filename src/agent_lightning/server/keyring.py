"""The keys file of a server: who may come, as hashes. Written whole or not at all, readable by its owner alone.

A key is 256 random bits, so its plain SHA-256 tells nobody anything: a slow hash guards passwords, which can be
guessed, and would only make each request slow here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from agent_lightning.errors import SettingError

Role = Literal["worker", "admin", "read"]
ROLES: tuple[Role, ...] = get_args(Role)
FILE = "keys.json"
_PREFIX: dict[Role, str] = {"worker": "alw-", "admin": "ala-", "read": "alo-"}
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is known of a key: enough to recognise it, not to say it."""

    name: str
    role: Role
    sha256: str  # of the key, hexadecimal
    created: float  # Unix seconds
    expires: float | None = None  # Unix seconds; None: when it is revoked

    def valid(self, now: float) -> bool:
        return self.expires is None or now < self.expires


def make_key(role: Role) -> str:
    return f"{_PREFIX[role]}{secrets.token_urlsafe(32)}"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of the file, expired ones too; none where there is no file. Raises SettingError for what is no such file,
    and for one that others may write."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o022:
                raise SettingError(f"{path} can be written by others (mode {mode & 0o777:o}): chmod 600 {path}")
            content = json.load(file)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SettingError(f"the keys file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingError(f"{path} is no keys file ({error}): make one with `agent-lightning keys add`") from error
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise SettingError(f'{path} is no keys file: {{"keys": [...]}} is wanted, as `agent-lightning keys add` writes')
    return tuple(_key(path, item) for item in listed)


def _key(path: Path, item: Any) -> Key:
    try:
        key = Key(**item)
        good = key.role in ROLES and isinstance(key.name, str) and len(bytes.fromhex(key.sha256)) == 32
        good = good and isinstance(key.created, int | float) and isinstance(key.expires, int | float | None)
    except (TypeError, ValueError):
        good, key = False, None
    if not good or key is None:
        raise SettingError(f"{path} has an entry that is no key: {str(item)[:200]}; revoke it by taking it out")
    return key


def add_key(path: Path, role: str, *, now: float, name: str | None = None, expires: float | None = None) -> str:
    """A new key, given once. Raises SettingError for a name that is taken and a role that nobody has."""
    if role not in ROLES:
        raise SettingError(f"role is {role!r}: {', '.join(ROLES)} are wanted")
    with _locked(path):
        known = read_keys(path)
        chosen = _free_name(role, known) if name is None else name
        _check_name(path, chosen, known)
        key = make_key(role)
        made = Key(name=chosen, role=role, sha256=digest(key), created=now, expires=expires)
        _write(path, [*known, made])
    return key


def revoke_key(path: Path, name: str) -> Key:
    """Take the key out. Raises SettingError where nobody has this name."""
    with _locked(path):
        known = read_keys(path)
        found = next((key for key in known if key.name == name), None)
        if found is None:
            names = ", ".join(key.name for key in known) or "none"
            raise SettingError(f"{path} has no key named {name!r}: its keys are {names}")
        _write(path, [key for key in known if key is not found])
    return found


def _free_name(role: str, known: Sequence[Key]) -> str:
    taken, number = {key.name for key in known}, 1
    while f"{role}-{number}" in taken:
        number += 1
    return f"{role}-{number}"


def _check_name(path: Path, name: str, known: Sequence[Key]) -> None:
    if not name or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise SettingError(f"name is {name!r}: 1 to {_LONGEST_NAME} printable characters are wanted")
    if any(key.name == name for key in known):
        raise SettingError(f"{path} has a key named {name!r}: choose another name, or revoke that one")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; a reader needs no lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingError(f"{path.parent} cannot be written ({error.strerror}): choose another folder") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, keys: Sequence[Key]) -> None:
    draft = path.with_name(f".{path.name}.draft")
    text = json.dumps({"keys": [asdict(key) for key in keys]}, indent=1)
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SettingError(f"{path} could not be written: {error.strerror}") from error
