"""The learner in torch: samples -> passes -> gradient sums -> one optimizer step. Start at `TorchLearner.update`."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_lightning.errors import LearnerError
from agent_lightning.learner import checkpoint, figures
from agent_lightning.learner.algorithms import Algorithm, algorithm_of
from agent_lightning.learner.before import Preferences, rounds, settle_advantages
from agent_lightning.learner.critic import Critic
from agent_lightning.learner.entries import Doubles, Entries, Floats, entries_of
from agent_lightning.learner.forward import read_states, score, states
from agent_lightning.learner.learner import LearnerConfig, Ranks, settled
from agent_lightning.learner.losses import Tokens, value_loss
from agent_lightning.learner.pack import Pass, plan, plan_unpacked
from agent_lightning.learner.probe import pass_cost, why_not_packed
from agent_lightning.learner.ranks import Alone
from agent_lightning.learner.tree_attention import use_tree_attention
from agent_lightning.learner.weights import Weights
from agent_lightning.models.adapter import Adapter
from agent_lightning.models.lora import adapter_off, attach_lora, shared_skeleton
from agent_lightning.records import Batch, UpdateReport


@dataclass(slots=True, kw_only=True)
class Lesson:
    """One batch while it is being learned: by which algorithm, from which tokens."""

    algorithm: Algorithm
    config: LearnerConfig  # settled for the algorithm
    entries: Entries
    preferences: Preferences | None
    critic_only: bool  # the value head is trained alone, before the policy follows it


class TorchLearner:
    """One rank's learner. `model` stays pristine: LoRA is put beside it, full weights are trained on a copy.

    `packing_reason` says whether passes are packed and, where not, why. `learner.kl` is the k3 estimate against the
    reference (the base model) when it is wanted, else against the weights that sampled.
    """

    def __init__(self, model: Any, config: LearnerConfig, *, policy: str, ranks: Ranks | None = None) -> None:
        self.config = config
        self.policy = policy
        self.ranks: Ranks = ranks or Alone()
        self.version = 0
        self._reference = model
        self._model = _trained_model(model, config)
        self._weights = Weights(
            {name: p for name, p in self._model.named_parameters() if p.requires_grad}, config, figures.EXTRA
        )
        self._critic = Critic(self._model, config) if algorithm_of(config.algorithm).critic else None
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
        lesson = self._lesson(share, version)
        totals, norms, reasons = torch.zeros_like(self._weights.extra), [], []
        for groups in rounds(share.groups, self.config, version):
            self._sum(lesson, groups)
            totals += self._weights.extra
            reasons.append(self._refusal())
            norms.append(self._weights.norm() if reasons[-1] else self._step(lesson, rate))
        applied = None in reasons
        self.version += applied
        report = figures.read(totals)
        report |= {
            "learner.loss": report["learner.loss"] / len(reasons),
            "learner.grad_norm": max(norms, key=lambda norm: (math.isnan(norm), norm)),
            "learner.rate": rate,
            "learner.skipped": float(len(reasons) - reasons.count(None)),
            "learner.seconds": time.monotonic() - started,
        }
        reason = None if applied else "nan" if "nan" in reasons else reasons[0]
        return UpdateReport(version=self.version, applied=applied, reason=reason, figures=report)

    def adapter(self) -> Adapter:
        tensors = {name: tensor.numpy() for name, tensor in self._weights.tensors().items()}
        rank, alpha = self.config.lora_rank, self.config.lora_alpha
        shown: dict[str, Any] = {"policy": self.policy, "version": self.version, "rank": rank, "alpha": alpha}
        if not rank:
            return Adapter(**shown, matrices={}, weights=tensors)
        paths = [name.removesuffix(".a") for name in tensors if name.endswith(".a")]
        return Adapter(**shown, matrices={path: (tensors[f"{path}.a"], tensors[f"{path}.b"]) for path in paths})

    def critic(self) -> dict[str, np.ndarray]:
        """The value head's present weights and moments, copied; empty without one."""
        return {name: tensor.numpy() for name, tensor in self._critic.state().items()} if self._critic else {}

    def save(self, folder: Path) -> None:
        checkpoint.write(
            folder,
            adapter=self.adapter(),
            model_config=self._reference.config,
            moments=self._weights.moments(),
            critic=self._critic.state() if self._critic else None,
            generator=self._generator,
        )

    def restore(self, folder: Path) -> int:
        saved = checkpoint.read(folder, rank=self.config.lora_rank, alpha=self.config.lora_alpha)
        if self._critic is not None:
            self._critic.take_up(saved.critic)
        self._weights.take_up(saved.tensors, saved.moments)
        self._generator.set_state(saved.random_state)
        self.version = saved.version
        return self.version

    def _lesson(self, share: Batch, version: int) -> Lesson:
        """Measure what must be known before the weights move, and find the advantages."""
        algorithm = algorithm_of(share.algorithm or self.config.algorithm)
        config = settled(self.config, algorithm)
        entries = entries_of(share, config)
        in_reward = bool(config.kl_coef) and config.kl_in == "reward"
        several = self.config.optimizer_steps > 1 and not algorithm.pairs
        everything = range(len(entries.samples))
        if algorithm.critic or in_reward or several:
            entries.old_N, entries.value_N = self._measure(entries, everything, with_values=algorithm.critic)
        if algorithm.pairs or (config.kl_coef and (in_reward or several)):
            entries.reference_N = self._measure_reference(entries, everything)
        settle_advantages(entries, algorithm, config, self._added)
        return Lesson(
            algorithm=algorithm,
            config=config,
            entries=entries,
            preferences=Preferences(entries, share.pairs) if algorithm.pairs else None,
            critic_only=algorithm.critic and version <= config.sft_steps + config.critic_warmup,
        )

    def _measure(
        self, entries: Entries, numbers: Sequence[int], *, with_values: bool = False
    ) -> tuple[Floats, Floats | None]:
        """Log-probabilities, and values where they are asked for, under the present weights."""
        logp_N = np.zeros(len(entries.step_N), np.float32)
        value_N = np.zeros(len(entries.step_N), np.float32) if with_values else None
        with torch.no_grad():
            for work in self._plan(entries, numbers):
                hidden_PD = states(self._model, work)
                logp_N[work.entry_E] = read_states(self._model, hidden_PD, work)[0].cpu().numpy()
                if value_N is not None:
                    assert self._critic is not None
                    value_N[work.entry_E] = self._critic.values(hidden_PD).cpu().numpy()[work.of_E]
        return logp_N, value_N

    def _measure_reference(self, entries: Entries, numbers: Sequence[int]) -> Floats:
        logp_N = np.zeros(len(entries.step_N), np.float32)
        for work in self._plan(entries, numbers):
            logp_N[work.entry_E] = self._reference_logp(work).cpu().numpy()
        return logp_N

    def _reference_logp(self, work: Pass) -> torch.Tensor:
        with torch.no_grad():
            if not self.config.lora_rank:
                return score(self._reference, work)[0]
            with adapter_off(self._model):
                return score(self._model, work)[0]

    def _sum(self, lesson: Lesson, groups: frozenset[str]) -> None:
        """Gradients and figures of the samples of these groups, summed over passes and ranks."""
        self._weights.clear()
        numbers = [n for n, sample in enumerate(lesson.entries.samples) if sample.group_id in groups]
        if lesson.preferences is not None:
            self._weigh(lesson, lesson.preferences, numbers)
        if self._critic is not None:
            self._critic.weights.clear()
        numbers = [number for number in numbers if _teaches(lesson, number)]
        figures.count(self._weights.extra, "samples", len(numbers))
        for work in self._plan(lesson.entries, numbers):
            self._accumulate(lesson, work)
        self.ranks.add(self._weights.sums)
        if self._critic is not None:
            self.ranks.add(self._critic.weights.sums)

    def _weigh(self, lesson: Lesson, preferences: Preferences, numbers: Sequence[int]) -> None:
        """How much each pair still has to teach under the present weights."""
        entries = lesson.entries
        assert entries.reference_N is not None
        ratio_N = self._measure(entries, numbers)[0].astype(np.float64) - entries.reference_N
        rollouts = frozenset(entries.samples[number].rollout_id for number in numbers)
        entries.advantage_N, margin_K, loss_K = preferences.weigh(ratio_N, lesson.config.dpo_beta, rollouts)
        counted = {"pairs": len(margin_K), "pair_margin": margin_K.sum(), "pair_right": (margin_K > 0).sum()}
        if len(margin_K):
            counted["loss"] = loss_K.sum() * float(entries.weight_N[0])
        for name, value in counted.items():
            figures.count(self._weights.extra, name, float(value))

    def _plan(self, entries: Entries, numbers: Sequence[int]) -> list[Pass]:
        samples, first = [entries.samples[n] for n in numbers], [int(entries.first[n]) for n in numbers]
        limits = {"micro_tokens": self.config.micro_tokens, "max_sample_tokens": self.config.max_sample_tokens}
        if not self.packing:
            return plan_unpacked(samples, first=first, **limits)
        return plan(samples, self._cost, pack_tokens=self.config.pack_tokens, first=first, **limits)

    def _accumulate(self, lesson: Lesson, work: Pass) -> None:
        """Add one pass's gradient and figures to the sums."""
        entries, config = lesson.entries, lesson.config
        with torch.set_grad_enabled(not lesson.critic_only):
            hidden_PD = states(self._model, work)
            logp_E, entropy_E = read_states(self._model, hidden_PD, work)
        known = self._known(entries, work)
        if config.kl_coef and "reference_E" not in known:
            known["reference_E"] = self._reference_logp(work)
        if lesson.algorithm.critic:
            assert self._critic is not None
            known["value_E"] = self._critic.values(hidden_PD)[torch.from_numpy(work.of_E).to(hidden_PD.device)]
        tokens = Tokens(**{"old_E": logp_E.detach(), "reference_E": None, **known}, logp_E=logp_E, entropy_E=entropy_E)
        loss_E = _critics_own(tokens, config) if lesson.critic_only else lesson.algorithm.loss(tokens, config)
        loss = (torch.from_numpy(entries.weight_N[work.entry_E]).to(loss_E.device) * loss_E).sum()
        loss.backward()
        figures.add(self._weights.extra, tokens, 0.0 if lesson.preferences else loss, work.tokens, config)

    def _known(self, entries: Entries, work: Pass) -> dict[str, Any]:
        """What is kept by number, for the tokens of one pass."""
        device = self._weights.sums.device
        kept = {
            "sampler_E": entries.sampler_N,
            "advantage_E": entries.advantage_N,
            "old_E": entries.old_N,
            "reference_E": entries.reference_N,
            "old_value_E": entries.value_N,
            "return_E": entries.return_N,
        }
        known = {name: torch.from_numpy(v[work.entry_E]).to(device) for name, v in kept.items() if v is not None}
        steps_E = np.unique(entries.step_N[work.entry_E], return_inverse=True)[1].reshape(-1)
        return {**known, "step_E": torch.from_numpy(steps_E).to(device)}

    def _added(self, values: Doubles) -> Doubles:
        """The sum over all ranks."""
        summed = torch.from_numpy(values).clone().to(self._weights.sums.device)
        self.ranks.add(summed)
        return summed.cpu().numpy()

    def _step(self, lesson: Lesson, rate: float) -> float:
        """Move the weights; gives the norm of the policy's gradient."""
        if lesson.algorithm.critic:
            assert self._critic is not None
            self._critic.step()
        return self._weights.norm() if lesson.critic_only else self._weights.step(rate)

    def _refusal(self) -> str | None:
        """Why the step is not taken; the same on every rank, because the sums are."""
        sums = dict(zip(figures.SUMS, self._weights.extra.tolist(), strict=False))
        if not sums["samples"]:
            return "no samples"
        norms = [self._weights.norm(), self._critic.weights.norm() if self._critic else 0.0]
        return None if all(math.isfinite(value) for value in (sums["loss"], *norms)) else "nan"


def _teaches(lesson: Lesson, number: int) -> bool:
    """Whether the sample moves the weights: a flat group's does only through other terms than the surrogate."""
    config, algorithm = lesson.config, lesson.algorithm
    uses_kl = bool(config.kl_coef) and config.kl_in == "loss" and "kl_coef" in algorithm.settings
    uses_entropy = bool(config.entropy_coef) and "entropy_coef" in algorithm.settings
    own = lesson.entries.advantage_N[lesson.entries.of_sample(number)]
    return algorithm.critic or uses_kl or uses_entropy or bool(own.any())


def _critics_own(tokens: Tokens, config: LearnerConfig) -> torch.Tensor:
    assert tokens.value_E is not None and tokens.old_value_E is not None and tokens.return_E is not None
    return value_loss(tokens.value_E, tokens.old_value_E, tokens.return_E, config.value_clip)


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
