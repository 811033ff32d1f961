"""A pass through the model: log-probabilities and entropies of its trained tokens, with their gradients.

Vocabulary logits (V wide) are made only for the P positions that predict trained tokens, `HEAD_ROWS` at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agent_lightning.learner.pack import Pass
from agent_lightning.learner.tree_attention import blocks_of, tree_in_force

HEAD_ROWS = 1024  # positions whose logits are alive at once; more are recomputed in the backward pass
IN_CACHE = 1 << 18  # float32 numbers: a megabyte


def score(model: Any, work: Pass) -> tuple[Tensor, Tensor]:
    """Give (logp_E, entropy_E), float32 nats of log_softmax(logits / temperature)."""
    return read_states(model, states(model, work), work)


def read_states(model: Any, hidden_PD: Tensor, work: Pass) -> tuple[Tensor, Tensor]:
    """The same from the last hidden states."""
    device = hidden_PD.device
    temperature_P = torch.from_numpy(work.temperature_P).to(device)
    logps, entropies = [], []
    for start in range(0, len(work.at_P), HEAD_ROWS):
        end = min(start + HEAD_ROWS, len(work.at_P))
        first, last = np.searchsorted(work.of_E, [start, end])
        of = torch.from_numpy(work.of_E[first:last] - start).to(device)
        target = torch.from_numpy(work.target_E[first:last]).to(device)
        piece: Any = (model, hidden_PD[start:end], temperature_P[start:end], of, target)
        recompute = len(work.at_P) > HEAD_ROWS and torch.is_grad_enabled()
        scored: Any = checkpoint(_head, *piece, use_reentrant=False) if recompute else _head(*piece)
        logp, entropy = scored
        logps.append(logp)
        entropies.append(entropy)
    return torch.cat(logps), torch.cat(entropies)


def states(model: Any, work: Pass) -> Tensor:
    """Last hidden states of the P predicting positions, (P, D)."""
    device = next(model.parameters()).device
    ids = torch.from_numpy(work.ids_BT).to(device)
    if work.mask_TT is None:
        output = model.get_decoder()(input_ids=ids, use_cache=False)
    else:
        dtype = next(model.parameters()).dtype
        mask = torch.zeros(work.mask_TT.shape, dtype=dtype).masked_fill_(
            torch.from_numpy(~work.mask_TT), torch.finfo(dtype).min
        )
        with tree_in_force(blocks_of(work.mask_TT)):
            output = model.get_decoder()(
                input_ids=ids,
                position_ids=torch.from_numpy(work.depth_BT).to(device),
                attention_mask=mask[None, None].to(device),
                use_cache=False,
            )
    states = output.last_hidden_state
    return states.reshape(-1, states.shape[-1]).index_select(0, torch.from_numpy(work.at_P).to(device))


def _head(
    model: Any, hidden_PD: Tensor, temperature_P: Tensor, of_E: Tensor, target_E: Tensor
) -> tuple[Tensor, Tensor]:
    logits_PV = finish(model, model.get_output_embeddings()(hidden_PD))
    logp_E, entropy_P = _Softmax.apply(logits_PV, temperature_P, of_E, target_E)  # type: ignore[misc]
    return logp_E, entropy_P[of_E]


def finish(model: Any, logits_PV: Tensor) -> Tensor:
    """What some families do to logits behind the output head: a scale, a divisor, a soft cap."""
    config = model.config.get_text_config()
    if scale := getattr(config, "logit_scale", None):
        logits_PV = logits_PV * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits_PV = logits_PV / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits_PV = torch.tanh(logits_PV / cap) * cap
    return logits_PV


class _Softmax(torch.autograd.Function):
    """Log-probabilities of targets and entropies of rows of log_softmax(logits / temperature).

    With l = log p: d logp_t / d z = onehot_t - p and d H / d z = -p (l + H), both over the temperature. Autograd would
    keep four (P, V) float32 arrays; this keeps the logits in the model's own dtype. A few rows at a time, so that every
    pass over them but the first finds them in the processor's cache.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_PV: Tensor, temperature_P: Tensor, of_E: Tensor, target_E: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm_P, mean_P = torch.empty_like(temperature_P), torch.empty_like(temperature_P)
        for rows in _few(logits_PV):
            scaled_RV = logits_PV[rows].float() / temperature_P[rows, None]
            norm_P[rows] = torch.logsumexp(scaled_RV, dim=-1)
            p_RV = torch.exp(scaled_RV - norm_P[rows, None])
            mean_P[rows] = torch.einsum("rv,rv->r", p_RV, scaled_RV)
        entropy_P = norm_P - mean_P
        logp_E = logits_PV[of_E, target_E].float() / temperature_P[of_E] - norm_P[of_E]
        ctx.save_for_backward(logits_PV, temperature_P, of_E, target_E, norm_P, entropy_P)
        ctx.set_materialize_grads(False)
        return logp_E, entropy_P

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        logits_PV, temperature_P, of_E, target_E, norm_P, entropy_P = ctx.saved_tensors
        grad_E, grad_entropy_P = grads
        if grad_E is None:
            grad_E = torch.zeros_like(of_E, dtype=torch.float32)
        # Both together, with s the sum of a row's grad_E: d / d z = grad_E onehot - p (s + grad_H (l + H))
        constant_P = torch.zeros_like(norm_P).index_add_(0, of_E, grad_E)
        if grad_entropy_P is not None:
            constant_P += grad_entropy_P * entropy_P
        own_E = grad_E / temperature_P[of_E]
        grad_PV = torch.empty_like(logits_PV)
        for rows in _few(logits_PV):
            log_RV = (logits_PV[rows].float() / temperature_P[rows, None]).sub_(norm_P[rows, None])
            grad_RV = torch.exp(log_RV).div_(-temperature_P[rows, None])
            if grad_entropy_P is None:
                grad_RV.mul_(constant_P[rows, None])
            else:
                grad_RV.mul_(log_RV.mul_(grad_entropy_P[rows, None]).add_(constant_P[rows, None]))
            first, last = torch.searchsorted(of_E, torch.tensor([rows.start, rows.stop], device=of_E.device)).tolist()
            place = (of_E[first:last] - rows.start, target_E[first:last])
            grad_RV.index_put_(place, own_E[first:last], accumulate=True)  # before a narrower type rounds the sum
            grad_PV[rows] = grad_RV
        return grad_PV, None, None, None


def _few(logits_PV: Tensor) -> Iterator[slice]:
    """Runs of rows that fit into the cache of a core together; on an accelerator all rows at once."""
    count, width = logits_PV.shape
    size = max(1, IN_CACHE // width) if logits_PV.device.type == "cpu" else max(1, count)
    for start in range(0, count, size):
        yield slice(start, start + size)
