"""The learner's contract: a batch of samples in, the next version of the weights out.

A learner is one rank of possibly several. Each rank gets its share of a batch, computes un-normalised sums, and adds
them over the ranks before it divides by the global count; a rank without samples takes part all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from agent_lightning.errors import SettingError
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """What the low level of LightningRL needs to know. Rates come with each update, from the schedule."""

    algorithm: str = "grpo"
    clip_epsilon: float = 0.2
    kl_coef: float = 0.0
    kl_form: Literal["k1", "k2", "k3"] = "k3"
    entropy_coef: float = 0.0
    importance_cap: float = 2.0  # truncated importance weight min(exp(lp - sampler), cap)
    lora_rank: int = 16  # 0 trains all weights
    lora_alpha: float = 32.0
    lora_layers: int | None = None  # only the last so many blocks get an adapter: cheaper updates; None: all
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of compute; trained weights are always float32
    seed: int = 0
    adam_betas: tuple[float, float] = (0.9, 0.99)
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    pack_tokens: int = 4096  # flat length of one packed tree
    max_sample_tokens: int = 8192  # longer samples fall back to one a call
    micro_tokens: int = 4096  # budget of one forward and backward when not packed
    packing: bool = True  # False takes the per-branch path

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, float, float, float], ...] = (
            ("clip_epsilon", self.clip_epsilon, 0.0, 10.0),
            ("kl_coef", self.kl_coef, 0.0, 1e3),
            ("entropy_coef", self.entropy_coef, 0.0, 1e3),
            ("importance_cap", self.importance_cap, 1e-3, 1e6),
            ("lora_rank", self.lora_rank, 0, 1024),
            ("lora_alpha", self.lora_alpha, 1e-6, 1e5),
            ("max_grad_norm", self.max_grad_norm, 1e-6, 1e6),
            ("pack_tokens", self.pack_tokens, 16, 1 << 20),
            ("max_sample_tokens", self.max_sample_tokens, 16, 1 << 20),
            ("micro_tokens", self.micro_tokens, 1, 1 << 24),
            ("adam_betas[0]", self.adam_betas[0], 0.0, 1.0 - 1e-9),
            ("adam_betas[1]", self.adam_betas[1], 0.0, 1.0 - 1e-9),
            ("adam_eps", self.adam_eps, 1e-20, 1.0),
            ("weight_decay", self.weight_decay, 0.0, 10.0),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise SettingError(f"{name} is {value}: wanted {low} to {high}")
        if self.lora_layers is not None and self.lora_layers < 1:
            raise SettingError(f"lora_layers is {self.lora_layers}: wanted 1 or more, or none for all blocks")
        if self.lora_layers is not None and not self.lora_rank:
            raise SettingError(
                f"lora_layers is {self.lora_layers}, but lora_rank = 0 trains all weights: leave it out, or set lora_rank"
            )
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise SettingError(f"dtype is {self.dtype!r}: wanted 'auto', 'float32' or 'bfloat16'")


class Ranks(Protocol):
    """How ranks add their sums. A single rank uses `Alone`."""

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def add(self, flat: Any) -> None:
        """Sum a float32 or float64 torch tensor over the ranks, in place."""
        ...


class Learner(Protocol):
    def update(self, share: Batch, *, rate: float, version: int) -> UpdateReport:
        """Take one optimizer step that makes `version` out of `version - 1`.

        `share.samples` are this rank's; `share.rollouts` and `figures` are the whole batch's. Whether a step with a
        NaN or infinite gradient is skipped is decided after the sum over ranks, alike on every rank; a skipped step
        leaves weights, optimizer and version as they were. Figures: learner.loss, learner.kl, learner.entropy,
        learner.grad_norm, learner.clip_fraction, learner.importance, learner.sampler_gap (mean),
        learner.sampler_gap_p99, learner.tokens, learner.computed_tokens, learner.seconds.
        """
        ...

    def adapter(self) -> Adapter:
        """The present weights, copied."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and random state into an empty folder: nothing pickled, every file flushed."""
        ...

    def restore(self, folder: Path) -> int:
        """Take up what `save` wrote; gives the version. Raises CheckpointError."""
        ...
