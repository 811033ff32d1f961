"""What an update reports, as sums that can be added over passes and ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.losses import Tokens, divergence, importance_weight, value_loss

SUMS: tuple[str, ...] = (
    "loss",
    "samples",
    "tokens",
    "computed_tokens",
    "kl",
    "entropy",
    "clipped",
    "importance",
    "gap",
    "value_loss",
    "return",
    "return_square",
    "miss",  # return - value
    "miss_square",
    "pairs",
    "pair_margin",
    "pair_right",
)
NO_SPREAD = 1e-6  # of the mean square: below it a variance is rounding noise of float32 sums
# |learner - sampler| in nats, counted by size so that a percentile can be had over all ranks
GAP_EDGES = torch.logspace(-7, 1.5, 255)
EXTRA = len(SUMS) + len(GAP_EDGES) + 1


def add(extra: Tensor, tokens: Tokens, loss: Tensor | float, computed: int, config: LearnerConfig) -> None:
    """Add one pass to `extra`, a float32 array of EXTRA numbers. `config` is settled."""
    with torch.no_grad():
        logp_E, old_E = tokens.logp_E, tokens.old_E
        gap_E = (old_E - tokens.sampler_E).abs()
        against_E = tokens.sampler_E if tokens.reference_E is None else tokens.reference_E
        sums = {
            "loss": loss,
            "tokens": float(len(logp_E)),
            "computed_tokens": float(computed),
            "kl": divergence(logp_E, against_E, "k3").sum(),
            "entropy": tokens.entropy_E.sum(),
            "clipped": _clipped(torch.exp(logp_E - old_E) - 1.0, config),
            "importance": importance_weight(old_E, tokens.sampler_E, config.importance_cap).sum(),
            "gap": gap_E.sum(),
            **_of_values(tokens, config),
        }
        for name, value in sums.items():
            extra[SUMS.index(name)] += value
        sizes = torch.bucketize(torch.nan_to_num(gap_E, nan=torch.inf).cpu(), GAP_EDGES)
        extra[len(SUMS) :] += torch.bincount(sizes, minlength=len(GAP_EDGES) + 1).to(extra.device)


def _clipped(change_E: Tensor, config: LearnerConfig) -> Tensor | float:
    if config.clip_epsilon is None or config.clip_epsilon_high is None:  # the algorithm knows no ratio
        return 0.0
    return ((change_E < -config.clip_epsilon) | (change_E > config.clip_epsilon_high)).sum()


def _of_values(tokens: Tokens, config: LearnerConfig) -> dict[str, Tensor]:
    if tokens.value_E is None or tokens.old_value_E is None or tokens.return_E is None:
        return {}
    miss_E = tokens.return_E - tokens.old_value_E
    return {
        "value_loss": value_loss(tokens.value_E, tokens.old_value_E, tokens.return_E, config.value_clip).sum(),
        "return": tokens.return_E.sum(),
        "return_square": tokens.return_E.square().sum(),
        "miss": miss_E.sum(),
        "miss_square": miss_E.square().sum(),
    }


def count(extra: Tensor, name: str, value: float) -> None:
    extra[SUMS.index(name)] += value


def read(extra: Tensor) -> dict[str, float]:
    """Metrics by their declared names; means are over trained tokens and absent where there were none."""
    sums = dict(zip(SUMS, extra[: len(SUMS)].tolist(), strict=True))
    figures = {
        "learner.loss": sums["loss"],
        "learner.tokens": sums["tokens"],
        "learner.computed_tokens": sums["computed_tokens"],
    }
    if not sums["tokens"]:
        return figures
    names = {
        "kl": "kl",
        "entropy": "entropy",
        "clipped": "clip_fraction",
        "importance": "importance",
        "gap": "sampler_gap",
    }
    figures |= {f"learner.{shown}": sums[name] / sums["tokens"] for name, shown in names.items()}
    figures |= _critic_figures(sums)
    if sums["pairs"]:
        figures["learner.pair_margin"] = sums["pair_margin"] / sums["pairs"]
        figures["learner.pair_accuracy"] = sums["pair_right"] / sums["pairs"]
    return figures | {"learner.sampler_gap_p99": _percentile(extra[len(SUMS) :].cpu(), 0.99)}


def _critic_figures(sums: dict[str, float]) -> dict[str, float]:
    """Explained variance is 1 - Var(R - V) / Var(R), of the values before the update; absent where R does not vary."""
    if not sums["return_square"] and not sums["miss_square"]:
        return {}
    count = sums["tokens"]
    figures = {"learner.value_loss": sums["value_loss"] / count}
    spread = sums["return_square"] / count - (sums["return"] / count) ** 2
    if spread > NO_SPREAD * sums["return_square"] / count:
        missed = sums["miss_square"] / count - (sums["miss"] / count) ** 2
        figures["learner.explained_variance"] = 1.0 - missed / spread
    return figures


def _percentile(counts: Tensor, share: float) -> float:
    """Upper edge of the bucket in which the share is reached."""
    reached = torch.cumsum(counts.double(), 0) >= share * counts.double().sum()
    bucket = int(reached.to(torch.int8).argmax())
    return float(GAP_EDGES[min(bucket, len(GAP_EDGES) - 1)])
