"""Rollout keys: "alr-" + attempt id + "." + secret. The store keeps the SHA-256 alone."""

from __future__ import annotations

import hashlib
import hmac
import secrets

_PREFIX = "alr-"


def make_key(attempt_id: str) -> str:
    return f"{_PREFIX}{attempt_id}.{secrets.token_urlsafe(24)}"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def attempt_named_in(key: str) -> str | None:
    """The attempt that this key claims to open; None when it is no rollout key."""
    attempt_id, dot, secret = key.removeprefix(_PREFIX).rpartition(".")
    return attempt_id if key.startswith(_PREFIX) and dot and attempt_id and secret else None


def opens(key: str, key_hash: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(digest(key), key_hash)
