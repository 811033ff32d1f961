"""What an update reports, as sums that can be added over passes and ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_lightning.learner.learner import LearnerConfig
from agent_lightning.learner.losses import Tokens, divergence, importance_weight

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
)
# |learner - sampler| in nats, counted by size so that a percentile can be had over all ranks
GAP_EDGES = torch.logspace(-7, 1.5, 255)
EXTRA = len(SUMS) + len(GAP_EDGES) + 1


def add(extra: Tensor, tokens: Tokens, loss: Tensor, computed: int, config: LearnerConfig) -> None:
    """Add one pass to `extra`, a float32 array of EXTRA numbers."""
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
            "clipped": ((torch.exp(logp_E - old_E) - 1.0).abs() > config.clip_epsilon).sum(),
            "importance": importance_weight(old_E, tokens.sampler_E, config.importance_cap).sum(),
            "gap": gap_E.sum(),
        }
        for name, value in sums.items():
            extra[SUMS.index(name)] += value
        sizes = torch.bucketize(torch.nan_to_num(gap_E, nan=torch.inf).cpu(), GAP_EDGES)
        extra[len(SUMS) :] += torch.bincount(sizes, minlength=len(GAP_EDGES) + 1).to(extra.device)


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
    return figures | {"learner.sampler_gap_p99": _percentile(extra[len(SUMS) :].cpu(), 0.99)}


def _percentile(counts: Tensor, share: float) -> float:
    """Upper edge of the bucket in which the share is reached."""
    reached = torch.cumsum(counts.double(), 0) >= share * counts.double().sum()
    bucket = int(reached.to(torch.int8).argmax())
    return float(GAP_EDGES[min(bucket, len(GAP_EDGES) - 1)])
