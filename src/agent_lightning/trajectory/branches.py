"""Trajectory -> branches: root-to-leaf token sequences in which each sampled token is trained exactly once.

**Constrained tokens.** Where a grammar left only the tokens of a set M legal, the token was not drawn from the policy
p = softmax(logits / T) but from b(a) = p(a) / Z for a in M, with Z = p(M) the legal mass. Recorded are log p(a), which
the learner computes again without a grammar (its gap to the sampler stays 0), and Z. With the importance weight
p(a) / b(a) = Z a token adds

    Z E_b[A grad log p(a)] = sum over M of A p(a) grad log p(a) = Z E_b[A grad log b(a)] + E_b[A] grad Z

to the gradient: that of the policy without a grammar whose illegal tokens have advantage 0. It points where the
constrained policy's own gradient points, and the rest moves mass towards what is legal where that state did well.
Without the factor Z the rest would be E_b[A] grad log Z, which drives tokens that the policy hardly ever writes by
itself with the full advantage. Where M has a single token grad log b = 0: nothing was chosen, nothing is trained.
Training on log b itself would need M of every token in the learner; where the policy keeps the format, Z = 1 and all
of these are the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent_lightning.records import Sample, Trajectory, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where one step's action lies in its branch: tokens [start, end)."""

    step: Transition
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    tokens: array[int]  # prompt of the leaf + its action
    trained: tuple[Span, ...]  # the steps that are trained in this branch, in token order


def branches(trajectory: Trajectory) -> list[Branch]:
    """One branch a leaf. A step shared by several leaves is trained in the first of them.

    Steps whose prompt extends another step's tokens hang under it; a leaf is a step that nothing extends.
    """
    by_id = {step.call_id: step for step in trajectory.steps}
    extended = {step.parent_call_id for step in trajectory.steps if step.parent_call_id in by_id}
    seen: set[str] = set()
    found: list[Branch] = []
    for leaf in trajectory.steps:
        if leaf.call_id in extended:
            continue
        chain = [step for step in _ancestry(leaf, by_id) if step.call_id not in seen]
        seen.update(step.call_id for step in chain)
        spans = tuple(Span(step=step, start=len(step.state), end=len(step.state) + len(step.action)) for step in chain)
        found.append(Branch(tokens=leaf.state + leaf.action, trained=spans))
    return found


def _ancestry(leaf: Transition, by_id: Mapping[str, Transition]) -> list[Transition]:
    """The chain of steps from the root to this leaf."""
    chain: list[Transition] = []
    step: Transition | None = leaf
    while step is not None:
        chain.append(step)
        step = by_id.get(step.parent_call_id) if step.parent_call_id is not None else None
    return chain[::-1]


def samples(
    trajectory: Trajectory,
    advantages: Sequence[float],
    *,
    rewards: Sequence[float] = (),
    max_tokens: int | None = None,
) -> list[Sample]:
    """The samples of one trajectory; `advantages` has one token advantage a step, in the order of its steps.

    `rewards`, where an algorithm wants them, has what each step is paid. A branch longer than `max_tokens` is cut into
    one sample a call. Steps of which nothing was chosen give none.
    """
    assert len(advantages) == len(trajectory.steps) and len(rewards) in (0, len(trajectory.steps))
    place_of = {step.call_id: place for place, step in enumerate(trajectory.steps)}
    total = sum(step.trained_tokens for step in trajectory.steps)
    if total == 0:
        return []
    made: list[Sample] = []
    for branch in branches(trajectory):
        if max_tokens is not None and len(branch.tokens) > max_tokens:
            pieces = [Branch(tokens=branch.tokens[: span.end], trained=(span,)) for span in branch.trained]
        else:
            pieces = [branch]
        for piece in pieces:
            chosen = [span for span in piece.trained if span.step.trained_tokens]
            if chosen:
                places = [place_of[span.step.call_id] for span in chosen]
                paid = array("f", [rewards[place] for place in places] if rewards else [])
                worth = [advantages[place] for place in places]
                kept = replace(piece, trained=tuple(chosen))
                made.append(_sample(trajectory, kept, places=places, worth=worth, paid=paid, rollout_tokens=total))
    return made


def _sample(
    trajectory: Trajectory,
    branch: Branch,
    *,
    places: Sequence[int],
    worth: Sequence[float],
    paid: array[float],
    rollout_tokens: int,
) -> Sample:
    length = len(branch.tokens)
    trained, logprobs, advantages = (
        array("b", bytes(length)),
        array("f", bytes(4 * length)),
        array("f", bytes(4 * length)),
    )
    bound = any(span.step.legal_mass for span in branch.trained)
    legal_mass = array("f", bytes(4 * length if bound else 0))
    for span, advantage in zip(branch.trained, worth, strict=True):
        step, here = span.step, slice(span.start, span.end)
        mass = step.legal_mass or array("f", [1.0]) * (span.end - span.start)
        trained[here] = array("b", [value > 0.0 for value in mass])
        logprobs[here] = array(
            "f", [nats if value > 0.0 else 0.0 for nats, value in zip(step.logprobs, mass, strict=True)]
        )
        advantages[here] = array("f", [advantage if value > 0.0 else 0.0 for value in mass])
        if bound:
            legal_mass[here] = mass
    temperatures = {span.step.temperature for span in branch.trained}
    assert len(temperatures) == 1, "one branch was sampled at several temperatures"
    return Sample(
        rollout_id=trajectory.rollout.id,
        group_id=trajectory.rollout.group_id,
        tokens=branch.tokens,
        trained=trained,
        logprobs=logprobs,
        advantages=advantages,
        temperature=temperatures.pop() or 1.0,
        rollout_tokens=rollout_tokens,
        version=max(span.step.version_to for span in branch.trained),
        call_ids=tuple(span.step.call_id for span in branch.trained),
        step_ends=array("i", [span.end for span in branch.trained]),
        step_places=array("i", places),
        step_rewards=paid,
        legal_mass=legal_mass,
    )
