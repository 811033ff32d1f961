"""Drawing tokens: one uniform a token, keyed by the call, so that a draw depends on nothing else in the batch.

Letters: R rows, V vocabulary, N blocks of BLOCK tokens.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn import functional

from agent_lightning.errors import EngineError
from agent_lightning.inference.engine import Sampling

BLOCK = 256  # the distribution is summed in blocks first: one exact short sum instead of one long inexact one


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One row of a step: how to draw, and where the call stands."""

    sampling: Sampling
    noise_key: str
    sampled: array[int]  # what the call has sampled so far: its length is the token index, penalties count it
    legal: Tensor | None = None  # (V,) bool, at least one true: the tokens that a grammar allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    token: int
    logprob: float  # nats of log_softmax(logits / temperature), before any filter, penalty or bias
    top: tuple[tuple[int, float], ...] = ()  # (id, nats) of the best alternatives, best first
    legal_mass: float = 1.0  # probability of the legal tokens, before any filter; 0.0 where there is only one


def uniform(noise_key: str, index: int) -> float:
    """The noise of one token: a float64 in [0, 1) that depends on the key and the token's index alone."""
    digest = blake2b(f"{noise_key}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


@torch.inference_mode()
def draw(logits_RV: Tensor, rows: Sequence[Draw]) -> list[Drawn]:
    """Draw one token a row. `logits_RV` is float32 and is overwritten. Raises EngineError on a NaN or infinite sum."""
    assert logits_RV.shape[0] == len(rows) and logits_RV.dtype == torch.float32
    device = logits_RV.device
    temperatures = [row.sampling.temperature or 1.0 for row in rows]
    if any(t != 1.0 for t in temperatures):
        logits_RV.div_(torch.tensor(temperatures, device=device).unsqueeze(1))
    logits_RV.sub_(logits_RV.amax(-1, keepdim=True))
    weights_RV = logits_RV.exp()
    total_R = weights_RV.sum(-1)
    if not bool(torch.isfinite(total_R).all()):
        raise EngineError(
            "the model's logits are not finite: its weights or the published adapter hold NaN or infinity"
        )
    log_total_R = total_R.log()
    masses = _legal_masses(weights_RV, total_R, rows)
    tokens_R = _choose(logits_RV, weights_RV, rows)
    chosen_R = logits_RV.gather(1, tokens_R.unsqueeze(1)).squeeze(1) - log_total_R
    tops = _alternatives(logits_RV, log_total_R, rows)
    return [
        Drawn(token=token, logprob=logprob, top=top, legal_mass=mass)
        for token, logprob, top, mass in zip(tokens_R.tolist(), chosen_R.tolist(), tops, masses, strict=True)
    ]


def _legal_masses(weights_RV: Tensor, total_R: Tensor, rows: Sequence[Draw]) -> list[float]:
    masses = [1.0] * len(rows)
    for i, row in enumerate(rows):
        if row.legal is not None:
            chosen = int(row.legal.sum()) > 1
            masses[i] = min(float(weights_RV[i][row.legal].sum() / total_R[i]), 1.0) if chosen else 0.0
    return masses


def _choose(shifted_RV: Tensor, weights_RV: Tensor, rows: Sequence[Draw]) -> Tensor:
    """One token id a row."""
    for i, row in enumerate(rows):
        if row.legal is not None or _is_shaped(row.sampling):
            weights_RV[i] = _shape(shifted_RV[i], row)
    greedy = [i for i, row in enumerate(rows) if row.sampling.temperature == 0.0]
    if len(greedy) == len(rows):
        return weights_RV.argmax(-1)
    noise = [uniform(row.noise_key, len(row.sampled)) for row in rows]
    tokens_R = _inverse(weights_RV, torch.tensor(noise, dtype=torch.float64, device=weights_RV.device))
    if greedy:
        tokens_R[greedy] = weights_RV[greedy].argmax(-1)
    return tokens_R


def _inverse(weights_RV: Tensor, noise_R: Tensor) -> Tensor:
    """The first token at which the cumulative weight exceeds noise x total: inverse transform sampling."""
    rows, size = weights_RV.shape
    if short := -size % BLOCK:
        weights_RV = functional.pad(weights_RV, (0, short))
    blocks_RNB = weights_RV.view(rows, -1, BLOCK)
    ends_RN = blocks_RNB.sum(-1).double().cumsum(-1)
    target_R1 = (noise_R * ends_RN[:, -1]).unsqueeze(1)
    block_R1 = torch.searchsorted(ends_RN, target_R1, right=True).clamp_(max=ends_RN.shape[1] - 1)
    before_R1 = torch.where(block_R1 > 0, ends_RN.gather(1, (block_R1 - 1).clamp(min=0)), 0.0)
    inside_RB = blocks_RNB[torch.arange(rows, device=noise_R.device), block_R1.squeeze(1)]
    ends_RB = inside_RB.double().cumsum(-1)
    # A target that rounding left beyond the block's own sum belongs to the last token of it that has weight.
    limit_R1 = torch.nextafter(ends_RB[:, -1:], torch.zeros_like(ends_RB[:, -1:]))
    offset_R1 = torch.searchsorted(ends_RB, torch.minimum(target_R1 - before_R1, limit_R1), right=True)
    return (block_R1 * BLOCK + offset_R1.clamp_(max=BLOCK - 1)).squeeze(1)


def _is_shaped(sampling: Sampling) -> bool:
    return bool(
        sampling.top_p < 1.0
        or sampling.top_k
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
    )


def _shape(shifted_V: Tensor, row: Draw) -> Tensor:
    """Weights after the grammar, penalties, bias, top_k and top_p, in this order."""
    sampling = row.sampling
    # A grammar may leave tokens alone whose weights, next to those of the others, are all 0.
    logits_V = shifted_V.clone() if row.legal is None else shifted_V.masked_fill(~row.legal, -torch.inf)
    scale = 1.0 / (sampling.temperature or 1.0)
    penalised = row.sampled if sampling.presence_penalty or sampling.frequency_penalty else ()
    for token, count in Counter(penalised).items():
        logits_V[token] -= scale * (sampling.presence_penalty + sampling.frequency_penalty * count)
    for token, bias in sampling.logit_bias.items():
        logits_V[token] += scale * bias
    if 0 < sampling.top_k < logits_V.numel():
        least = logits_V.topk(sampling.top_k).values[-1]
        logits_V[logits_V < least] = -torch.inf
    weights_V = torch.softmax(logits_V, -1)
    if sampling.top_p >= 1.0:
        return weights_V
    sorted_V, order_V = weights_V.sort(descending=True, stable=True)
    # Keep the tokens that come before the mass is reached, the one that reaches it included, at least one.
    beyond_V = sorted_V.cumsum(0) - sorted_V >= sampling.top_p
    beyond_V[0] = False
    weights_V[order_V[beyond_V]] = 0.0
    return weights_V


def _alternatives(shifted_RV: Tensor, log_total_R: Tensor, rows: Sequence[Draw]) -> list[tuple[tuple[int, float], ...]]:
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(rows)
    for i, row in enumerate(rows):
        if wanted := min(row.sampling.top_logprobs, shifted_RV.shape[1]):
            best = shifted_RV[i].topk(wanted)
            nats = (best.values - log_total_R[i]).tolist()
            tops[i] = tuple(zip(best.indices.tolist(), nats, strict=True))
    return tops
