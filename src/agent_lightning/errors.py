"""Every error a user can meet: one tree, one class a boundary.

A message says what came, what was wanted and what to do about it. Mistakes of our own code are `assert`s.
"""

from __future__ import annotations


class LightningError(Exception):
    """Root of the tree; catch it to catch everything this package raises on purpose."""


class SettingError(LightningError):
    """A setting is unknown, has a wrong value, or cannot be honoured by what was chosen."""


class TaskError(LightningError):
    """A task, or the file it was read from, is not usable; names the file and the line."""


class RewardError(LightningError):
    """A reward function raised or returned something that is not a finite number, a mapping of them, or None."""


class AgentError(LightningError):
    """The agent cannot be loaded or called."""


class ModelError(LightningError):
    """A model, tokenizer, chat template or adapter cannot be loaded or does not fit."""


class EngineError(LightningError):
    """The inference engine cannot serve a request."""


class EngineBusy(EngineError):
    """The engine cannot take the request now; the caller may try again."""


class LearnerError(LightningError):
    """An update cannot be computed."""


class PeerLost(LearnerError):
    """Another rank died or fell silent while gradients were summed: the sum must be made again by a new crew."""


class CheckpointError(LightningError):
    """A checkpoint is missing, incomplete or damaged."""


class StoreError(LightningError):
    """The store cannot be opened, or refuses an illegal transition."""


class Conflict(StoreError):
    """The state of the record does not allow this; HTTP 409."""


class Fenced(StoreError):
    """The attempt has ended or was taken over; its calls are sealed. HTTP 410."""


class NotFound(StoreError):
    """No such record; HTTP 404."""


class RunInUse(StoreError):
    """Another process holds this run, database or port."""


class AccessDenied(LightningError):
    """The key is missing, unknown or opens another door. HTTP 401 or 403."""


class ServerBusy(LightningError):
    """The server has as much to do as it takes; the caller may try again. HTTP 429 with Retry-After."""


class RequestError(LightningError):
    """A request in a foreign format cannot be honoured. HTTP 400.

    `field` is the name of the offending field in the caller's own format, None when it is the whole body.
    """

    def __init__(self, message: str, *, field: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class PromptTooLong(RequestError):
    """The rendered prompt does not fit the policy's context; becomes the outcome `over_long_prompt`."""


class ServerUnreachable(LightningError):
    """The training server did not answer within the deadline."""


class TrainingStopped(LightningError):
    """A guard stopped the run; the message names the guard, the figure and the remedy."""


class MissingExtra(LightningError):
    """A command or setting needs an extra of this distribution that is not installed."""
