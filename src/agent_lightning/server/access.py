"""Which key opens which door. On loopback a server without keys takes everybody; rollout keys are always needed."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from agent_lightning.errors import AccessDenied
from agent_lightning.store.store import Access, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    worker: str | None = None
    admin: str | None = None
    read: str | None = None

    def work(self, key: str | None) -> None:
        """Raise AccessDenied unless the key may claim rollouts."""
        if self.worker is not None and not (_same(key, self.worker) or _same(key, self.admin)):
            raise AccessDenied("claiming needs the worker key: set api_key or AGENT_LIGHTNING_API_KEY")

    def steer(self, key: str | None) -> None:
        if self.admin is not None and not _same(key, self.admin):
            raise AccessDenied("this needs the admin key")

    def look(self, key: str | None) -> None:
        if self.admin is not None and not any(_same(key, own) for own in (self.read, self.admin)):
            raise AccessDenied("this needs the read or the admin key")

    def lists_models(self, key: str) -> bool:
        return any(_same(key, own) for own in (self.worker, self.admin, self.read))


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


def _same(key: str | None, own: str | None) -> bool:
    return key is not None and own is not None and hmac.compare_digest(key.encode(), own.encode())
