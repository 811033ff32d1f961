"""The learner in torch: samples -> passes -> gradient sums -> one optimizer step. Start at `TorchLearner.update`."""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import Any

import torch

from agent_lightning.errors import LearnerError
from agent_lightning.learner import checkpoint, figures
from agent_lightning.learner.forward import score
from agent_lightning.learner.learner import LearnerConfig, Ranks
from agent_lightning.learner.losses import Tokens, loss_of
from agent_lightning.learner.pack import Pass, plan, plan_unpacked
from agent_lightning.learner.probe import pass_cost, why_not_packed
from agent_lightning.learner.ranks import Alone
from agent_lightning.learner.tree_attention import use_tree_attention
from agent_lightning.learner.weights import Weights
from agent_lightning.models.adapter import Adapter
from agent_lightning.models.lora import adapter_off, attach_lora, shared_skeleton
from agent_lightning.records import Batch, Sample, UpdateReport


class TorchLearner:
    """One rank's learner. `model` stays pristine: LoRA is put beside it, full weights are trained on a copy.

    `packing_reason` says whether passes are packed and, where not, why. `learner.kl` is the k3 estimate against the
    reference (the base model) when `kl_coef` is set, else against the weights that sampled.
    """

    def __init__(self, model: Any, config: LearnerConfig, *, policy: str, ranks: Ranks | None = None) -> None:
        self.config = config
        self.policy = policy
        self.ranks: Ranks = ranks or Alone()
        self.version = 0
        self._loss = loss_of(config.algorithm)
        self._reference = model
        self._model = _trained_model(model, config)
        self._weights = Weights(
            {name: p for name, p in self._model.named_parameters() if p.requires_grad}, config, figures.EXTRA
        )
        self._generator = torch.Generator().manual_seed(config.seed)
        refused = why_not_packed(model.config) if config.packing else "the setting `packing` is off"
        self.packing_reason = refused or "packed and unpacked passes agree"
        self.packing = refused is None
        self._cost = pass_cost(model.config)

    def update(self, share: Batch, *, rate: float, version: int) -> UpdateReport:
        """See the contract. A batch in which nothing can be learned is skipped with the reason "no samples"."""
        if version != self.version + 1:
            raise LearnerError(f"version {version} was asked for, but the weights are at {self.version}: restore first")
        started = time.monotonic()
        self._weights.clear()
        samples = [sample for sample in share.samples if self._teaches(sample)]
        figures.count(self._weights.extra, "samples", len(samples))
        for work in self._plan(samples, share.rollouts):
            self._accumulate(work)
        self.ranks.add(self._weights.sums)
        reason = self._refusal()
        report = figures.read(self._weights.extra)
        norm = self._weights.norm() if reason else self._weights.step(rate)
        self.version += reason is None
        report |= {
            "learner.grad_norm": norm,
            "learner.rate": rate,
            "learner.skipped": float(reason is not None),
            "learner.seconds": time.monotonic() - started,
        }
        return UpdateReport(version=self.version, applied=reason is None, reason=reason, figures=report)

    def adapter(self) -> Adapter:
        tensors = {name: tensor.numpy() for name, tensor in self._weights.tensors().items()}
        rank, alpha = self.config.lora_rank, self.config.lora_alpha
        shown: dict[str, Any] = {"policy": self.policy, "version": self.version, "rank": rank, "alpha": alpha}
        if not rank:
            return Adapter(**shown, matrices={}, weights=tensors)
        paths = [name.removesuffix(".a") for name in tensors if name.endswith(".a")]
        return Adapter(**shown, matrices={path: (tensors[f"{path}.a"], tensors[f"{path}.b"]) for path in paths})

    def save(self, folder: Path) -> None:
        checkpoint.write(
            folder,
            adapter=self.adapter(),
            model_config=self._reference.config,
            moments=self._weights.moments(),
            generator=self._generator,
        )

    def restore(self, folder: Path) -> int:
        saved = checkpoint.read(folder, rank=self.config.lora_rank, alpha=self.config.lora_alpha)
        self._weights.take_up(saved.tensors, saved.moments)
        self._generator.set_state(saved.random_state)
        self.version = saved.version
        return self.version

    def _teaches(self, sample: Sample) -> bool:
        """Whether the sample moves the weights: a flat group's does only through the KL and entropy terms."""
        return any(sample.trained) and bool(self.config.kl_coef or self.config.entropy_coef or any(sample.advantages))

    def _plan(self, samples: list[Sample], rollouts: int) -> list[Pass]:
        limits = {"micro_tokens": self.config.micro_tokens, "max_sample_tokens": self.config.max_sample_tokens}
        if not self.packing:
            return plan_unpacked(samples, rollouts, **limits)
        return plan(samples, rollouts, self._cost, pack_tokens=self.config.pack_tokens, **limits)

    def _accumulate(self, work: Pass) -> None:
        """Add one pass's gradient and figures to the sums."""
        device = self._weights.sums.device
        logp_E, entropy_E = score(self._model, work)
        tokens = Tokens(
            logp_E=logp_E,
            old_E=logp_E.detach(),
            sampler_E=torch.from_numpy(work.sampler_E).to(device),
            reference_E=self._reference_logp(work) if self.config.kl_coef else None,
            advantage_E=torch.from_numpy(work.advantage_E).to(device),
            entropy_E=entropy_E,
        )
        loss = (torch.from_numpy(work.weight_E).to(device) * self._loss(tokens, self.config)).sum()
        loss.backward()
        figures.add(self._weights.extra, tokens, loss, work.tokens, self.config)

    def _reference_logp(self, work: Pass) -> torch.Tensor:
        with torch.no_grad():
            if not self.config.lora_rank:
                return score(self._reference, work)[0]
            with adapter_off(self._model):
                return score(self._model, work)[0]

    def _refusal(self) -> str | None:
        """Why no step is taken; read from the summed numbers, so every rank decides alike."""
        sums = dict(zip(figures.SUMS, self._weights.extra.tolist(), strict=False))
        if not sums["samples"]:
            return "no samples"
        return None if math.isfinite(sums["loss"]) and math.isfinite(self._weights.norm()) else "nan"


def _trained_model(model: Any, config: LearnerConfig) -> Any:
    dtype = model.dtype if config.dtype == "auto" else getattr(torch, config.dtype)
    if not config.lora_rank:
        own = copy.deepcopy(model).to(dtype).requires_grad_(True)
        use_tree_attention(own)
        return own
    if model.dtype != dtype:  # the base is shared with the engine: casting it would change the engine's numbers
        raise LearnerError(f"the model computes in {model.dtype}, dtype is {config.dtype!r}: load it with that dtype")
    trained = shared_skeleton(model)
    use_tree_attention(trained)
    attach_lora(trained, config.lora_rank, config.lora_alpha, config.seed, config.lora_layers)
    return trained
