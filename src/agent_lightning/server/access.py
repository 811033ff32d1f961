"""Which key opens which door. On loopback a server without keys takes everybody; rollout keys are always needed.

docs/security.md has the table; tests/unit/server/test_server_doors.py tries every route with every key.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_lightning.errors import AccessDenied, SettingError
from agent_lightning.server.keyring import Key, Role, digest, make_key, read_keys
from agent_lightning.store.store import Access, Store

LOOK_SECONDS = 1.0  # between two looks at the keys file
_LOG = logging.getLogger(__name__)


class Keys:
    """The keys of a server: those of its settings, which stay, and those of its keys file, which come and go.

    A change of the file holds within LOOK_SECONDS. Once a server has had a key it never goes back to taking everybody:
    with the file gone nobody but a holder of a fixed key comes in, and a file that cannot be read leaves things as they were.
    """

    def __init__(
        self,
        *,
        worker: str | None = None,
        admin: str | None = None,
        read: str | None = None,
        file: Path | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises SettingError for a keys file that is none."""
        given: Sequence[tuple[Role, str | None]] = (("worker", worker), ("admin", admin), ("read", read))
        self.own = make_key("worker")  # of this process's own worker; known to nobody else
        self._fixed = [
            Key(name=f"{role}_key", role=role, sha256=digest(key), created=0.0) for role, key in given if key
        ]
        self._own = Key(name="own", role="worker", sha256=digest(self.own), created=0.0)
        self._file, self._clock, self._ticks = file, clock, ticks
        self._seen = _state_of(file)
        self._filed = read_keys(file) if file else ()
        self._looked = ticks()
        self._guarded = bool(self._fixed or self._filed)

    @property
    def guarded(self) -> bool:
        """Whether keys are asked for."""
        self._look_again()
        return self._guarded

    def role_of(self, key: str | None) -> Role | None:
        """None for a key that nobody holds. Every key is compared, in constant time, whichever fits."""
        self._look_again()
        now, mine = self._clock(), digest(key or "")
        found: Role | None = None
        for known in (*self._fixed, *self._filed, self._own):
            same = hmac.compare_digest(known.sha256, mine)
            if same & known.valid(now):
                found = known.role
        return found

    def has(self, role: Role) -> bool:
        """Whether somebody may hold a key of this role now."""
        self._look_again()
        return any(key.role == role and key.valid(self._clock()) for key in (*self._fixed, *self._filed))

    def work(self, key: str | None) -> None:
        """Raise AccessDenied unless the key may claim rollouts."""
        if self.guarded and self.role_of(key) not in ("worker", "admin"):
            raise AccessDenied("claiming needs the worker key: set api_key or AGENT_LIGHTNING_API_KEY")

    def steer(self, key: str | None) -> None:
        if self.guarded and self.role_of(key) != "admin":
            raise AccessDenied("this needs the admin key")

    def look(self, key: str | None) -> None:
        if self.guarded and self.role_of(key) not in ("read", "admin"):
            raise AccessDenied("this needs the read or the admin key")

    def lists_models(self, key: str) -> bool:
        return self.role_of(key) is not None

    def _look_again(self) -> None:
        if self._file is None or self._ticks() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._ticks()
        state = _state_of(self._file)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._filed = read_keys(self._file)
        except SettingError as error:
            _LOG.error("the keys stay as they were: %s", error)
            return
        self._guarded = self._guarded or bool(self._filed)
        _LOG.info("keys of %s: %s", self._file, ", ".join(key.name for key in self._filed) or "none")


def check_binding(host: str, keys: Keys, file: Path) -> None:
    """Raises SettingError for an address that others can reach while nobody could hold the keys it needs."""
    missing = [role for role in ("worker", "admin") if not keys.has(role)]
    if _loopback(host) or not missing:
        return
    commands = " and ".join(f"`agent-lightning keys add {role} --file {file}`" for role in missing)
    settings = " and ".join(f"{role}_key" for role in missing)
    raise SettingError(
        f"host is {host!r}, which others can reach: make keys with {commands} (or set {settings}), or bind to 127.0.0.1"
    )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _state_of(file: Path | None) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None where there is none."""
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_ino, found.st_size)


async def attempt_of(store: Store, key: str | None, attempt_id: str) -> Access:
    """The access of a rollout's key to its own attempt. Raises AccessDenied for any other."""
    access = await rollout_access(store, key)
    if access.attempt_id != attempt_id:
        raise AccessDenied("the key belongs to another attempt: each attempt has a key of its own")
    return access


async def rollout_access(store: Store, key: str | None) -> Access:
    access = await store.access(key) if key else None
    if access is None:
        raise AccessDenied("the rollout's key is missing or unknown: send it as `Authorization: Bearer KEY`")
    return access
