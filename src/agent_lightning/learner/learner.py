"""The learner's contract: a batch of samples in, the next version of the weights out.

A learner is one rank of possibly several. Each rank gets its share of a batch, computes un-normalised sums, and adds
them over the ranks before it divides by the global count; a rank without samples takes part all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from agent_lightning.errors import SettingError
from agent_lightning.learner.algorithms import WARM_START, Algorithm, algorithm_of, algorithms, specific
from agent_lightning.models.adapter import Adapter
from agent_lightning.records import Batch, UpdateReport

Scale = Literal["rollout", "token", "constant"]
KlForm = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """What the low level of LightningRL needs to know. Rates come with each update, from the schedule.

    None is what the algorithm itself says; `settled` fills it in. A setting that the algorithm does not use is refused.
    """

    algorithm: str = "grpo"
    clip_epsilon: float | None = None  # how far the ratio may fall below 1; 0.2 unless the algorithm says otherwise
    clip_epsilon_high: float | None = (
        None  # how far it may rise above 1; as clip_epsilon unless the algorithm says otherwise
    )
    kl_coef: float = 0.0
    kl_form: KlForm | None = None  # k3 in the loss, k1 in the reward
    kl_in: Literal["loss", "reward"] | None = None
    entropy_coef: float = 0.0
    importance_cap: float = 2.0  # truncated importance weight min(exp(lp - sampler), cap)
    loss_scale: Scale | None = None  # what a token's loss is divided by: its rollout's tokens, all tokens, loss_tokens
    loss_tokens: int = 512  # with loss_scale "constant"
    minibatches: int = 1  # optimizer steps that share a batch
    epochs: int = 1  # times that a batch is gone through
    whiten_advantages: bool | None = None  # mean 0 and variance 1 over the batch's tokens
    gae_lambda: float = 0.95
    gae_gamma: float = 1.0
    gae_over: Literal["call", "trajectory"] = "call"  # what is one episode
    value_coef: float = 0.5  # weight of the critic's loss in what moves the policy's weights
    value_clip: float = 0.2  # how far a value may move in one batch; 0: as far as it likes
    value_learning_rate: float = 1e-3  # of the value head
    critic_warmup: int = 0  # first updates that train the value head alone
    dpo_beta: float = 0.1
    sft_steps: int = 0  # first steps that imitate the best siblings before the algorithm begins
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
        _check_ranges(self)
        if self.lora_layers is not None and self.lora_layers < 1:
            raise SettingError(f"lora_layers is {self.lora_layers}: wanted 1 or more, or none for all blocks")
        if self.lora_layers is not None and not self.lora_rank:
            raise SettingError(
                f"lora_layers is {self.lora_layers}, but lora_rank = 0 trains all weights: leave it out, or set lora_rank"
            )
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise SettingError(f"dtype is {self.dtype!r}: wanted 'auto', 'float32' or 'bfloat16'")
        changed = [item.name for item in fields(self) if getattr(self, item.name) != item.default]
        check_used(changed, self)

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities under the base model are wanted."""
        return bool(self.kl_coef) or algorithm_of(self.algorithm).pairs

    @property
    def optimizer_steps(self) -> int:
        """Of one update."""
        return self.minibatches * self.epochs


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("clip_epsilon", 0.0, 10.0),
    ("clip_epsilon_high", 0.0, 1e6),
    ("kl_coef", 0.0, 1e3),
    ("entropy_coef", 0.0, 1e3),
    ("importance_cap", 1e-3, 1e6),
    ("loss_tokens", 1, 1 << 30),
    ("minibatches", 1, 100_000),
    ("epochs", 1, 1000),
    ("gae_lambda", 0.0, 1.0),
    ("gae_gamma", 0.0, 1.0),
    ("value_coef", 0.0, 1e3),
    ("value_clip", 0.0, 1e6),
    ("value_learning_rate", 0.0, 1.0),
    ("critic_warmup", 0, 1 << 40),
    ("dpo_beta", 1e-6, 1e3),
    ("sft_steps", 0, 1 << 40),
    ("lora_rank", 0, 1024),
    ("lora_alpha", 1e-6, 1e5),
    ("max_grad_norm", 1e-6, 1e6),
    ("pack_tokens", 16, 1 << 20),
    ("max_sample_tokens", 16, 1 << 20),
    ("micro_tokens", 1, 1 << 24),
    ("adam_eps", 1e-20, 1.0),
    ("weight_decay", 0.0, 10.0),
)


def _check_ranges(config: LearnerConfig) -> None:
    values = [(name, getattr(config, name), low, high) for name, low, high in _RANGES]
    values += [(f"adam_betas[{i}]", beta, 0.0, 1.0 - 1e-9) for i, beta in enumerate(config.adam_betas)]
    for name, value, low, high in values:
        if value is not None and not low <= value <= high:
            raise SettingError(f"{name} is {value}: wanted {low} to {high}")


def check_used(names: Iterable[str], config: LearnerConfig) -> None:
    """Raises SettingError where one of these settings, which somebody made, is none that the algorithm uses."""
    algorithm = algorithm_of(config.algorithm)
    used = algorithm.settings | (algorithm_of(WARM_START).settings if config.sft_steps else frozenset())
    names = set(names)
    for name in sorted(names):
        if name in specific() and name not in used:
            able = ", ".join(other.name for other in algorithms() if name in other.settings)
            raise SettingError(
                f"{name} is set, but algorithm {config.algorithm!r} does not use it: leave it out, or choose one of {able}"
            )
    scale = config.loss_scale or algorithm.defaults.get("loss_scale")
    if "loss_tokens" in names and scale != "constant":
        raise SettingError(
            "loss_tokens is set, but it is what loss_scale = 'constant' divides by: set that, or leave it out"
        )
    if config.sft_steps and algorithm.name == WARM_START:
        raise SettingError(f"sft_steps is {config.sft_steps}, but algorithm is {WARM_START!r} anyway: leave it out")
    if config.kl_in == "reward" and "kl_coef" in algorithm.settings and not algorithm.reward_kl:
        able = ", ".join(other.name for other in algorithms() if other.reward_kl)
        raise SettingError(
            f"kl_in is 'reward', but the advantages of {config.algorithm!r} are made from whole rewards: set kl_in = "
            f"'loss', or choose one of {able}"
        )


def settled(config: LearnerConfig, algorithm: Algorithm) -> LearnerConfig:
    """The config with nothing left open that the algorithm uses: given > the algorithm's default > everybody's."""
    usual: dict[str, Any] = {"clip_epsilon": 0.2, "kl_in": "loss", "loss_scale": "rollout", "whiten_advantages": False}
    usual |= dict(algorithm.defaults)
    chosen = {name: value for name, value in usual.items() if getattr(config, name) is None}
    if config.clip_epsilon_high is None and "clip_epsilon_high" not in chosen:
        chosen["clip_epsilon_high"] = chosen.get("clip_epsilon", config.clip_epsilon)
    if config.kl_form is None:
        chosen["kl_form"] = "k1" if chosen.get("kl_in", config.kl_in) == "reward" else "k3"
    return replace(config, **{name: value for name, value in chosen.items() if name in algorithm.settings})


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
        """Make `version` out of `version - 1`: one optimizer step, or minibatches x epochs of them.

        `share.samples` are this rank's; all else of it is the whole batch's. Whether a step with a NaN or infinite
        gradient is skipped is decided after the sum over ranks, alike on every rank; a skipped step leaves weights and
        optimizer as they were, and where no step was taken the version stays too. Figures: learner.loss, learner.kl,
        learner.entropy, learner.grad_norm (the largest), learner.clip_fraction, learner.importance,
        learner.sampler_gap (mean), learner.sampler_gap_p99, learner.tokens, learner.computed_tokens, learner.skipped,
        learner.seconds; with a critic learner.value_loss, learner.explained_variance; with pairs learner.pair_margin,
        learner.pair_accuracy.
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
