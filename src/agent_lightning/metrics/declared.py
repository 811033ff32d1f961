"""Every metric, declared once: name, unit, help, threshold and what to do when it is crossed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    kind: Kind
    unit: str  # "s", "1" (a share or ratio), "tokens", "nats", ...
    help: str
    above: float | None = None  # alert when the value is above
    below: float | None = None  # alert when it is below
    remedy: str = ""  # what to do then

    def crossed(self, value: float) -> bool:
        return (self.above is not None and value > self.above) or (self.below is not None and value < self.below)


def _declare(*metrics: Metric) -> dict[str, Metric]:
    table = {metric.name: metric for metric in metrics}
    assert len(table) == len(metrics), "a metric is declared twice"
    return table


METRICS = _declare(
    Metric(name="agent.step.timeout_rate", kind="gauge", unit="1", help="share of LLM calls that hit max_step_timeout",
           above=0.05, remedy="add client instances or replicas, or raise max_step_timeout"),
    Metric(name="trajectory.collection_rate", kind="gauge", unit="1", help="finished and usable / started rollouts",
           below=0.85, remedy="`agent-lightning show RUN` lists why rollouts were dropped"),
    Metric(name="credit.assignment_variance", kind="gauge", unit="1",
           help="mean over task groups of the variance of credit over steps", above=0.2,
           remedy="raise credit_floor, lower credit_decay or use credit_assignment = 'uniform'"),
    Metric(name="training.convergence_speedup", kind="gauge", unit="1",
           help="steps to the baseline's best validation reward, against the baseline run"),
    Metric(name="injection.overhead", kind="histogram", unit="s", help="what interception adds to one call"),
    Metric(name="gateway.latency", kind="histogram", unit="s", help="time of a call at the gateway less the engine's"),
    Metric(name="engine.utilization", kind="gauge", unit="1", help="share of time in which the engine computes"),
    Metric(name="engine.tokens_per_second", kind="gauge", unit="tokens/s", help="sampled tokens"),
    Metric(name="learner.loss", kind="gauge", unit="1", help="loss of the update"),
    Metric(name="learner.sampler_gap", kind="gauge", unit="nats",
           help="mean |learner - sampler| log-probability of sampled tokens", above=0.1,
           remedy="use dtype = 'float32', or report the model: sampler and learner disagree"),
    Metric(name="learner.sampler_gap_p99", kind="gauge", unit="nats", help="99th percentile of the same"),
    Metric(name="learner.kl", kind="gauge", unit="nats", help="KL(policy || reference) per token, k3 estimate", above=5.0,
           remedy="lower learning_rate or raise kl_coef"),
    Metric(name="learner.entropy", kind="gauge", unit="nats", help="mean entropy of the policy on trained tokens",
           below=0.01, remedy="raise entropy_coef or kl_coef: the policy no longer explores"),
    Metric(name="learner.grad_norm", kind="gauge", unit="1", help="gradient norm before clipping", above=100.0,
           remedy="lower learning_rate"),
    Metric(name="learner.clip_fraction", kind="gauge", unit="1", help="share of trained tokens whose ratio is clipped"),
    Metric(name="learner.importance", kind="gauge", unit="1", help="mean truncated importance weight"),
    Metric(name="learner.tokens", kind="gauge", unit="tokens", help="trained tokens of the update"),
    Metric(name="learner.computed_tokens", kind="gauge", unit="tokens", help="tokens computed for it"),
    Metric(name="learner.seconds", kind="gauge", unit="s", help="time of the update"),
    Metric(name="learner.rate", kind="gauge", unit="1", help="learning rate"),
    Metric(name="learner.skipped", kind="counter", unit="updates", help="updates skipped by the NaN guard"),
    Metric(name="learner.value_loss", kind="gauge", unit="1", help="the critic's loss on trained tokens"),
    Metric(name="learner.explained_variance", kind="gauge", unit="1",
           help="share of the variance of returns that the critic foresaw", below=-1.0,
           remedy="set critic_warmup, or lower value_learning_rate: the critic is worse than none"),
    Metric(name="learner.pair_margin", kind="gauge", unit="1",
           help="mean of beta x (log-ratio of the chosen - log-ratio of the rejected) before the step"),
    Metric(name="learner.pair_accuracy", kind="gauge", unit="1", help="share of pairs with a margin above 0"),
    Metric(name="reward.mean", kind="gauge", unit="1", help="mean reward of the step's rollouts"),
    Metric(name="reward.std", kind="gauge", unit="1", help="standard deviation of the same"),
    Metric(name="reward.success", kind="gauge", unit="1", help="share of rollouts that reach success_reward"),
    Metric(name="reward.length_correlation", kind="gauge", unit="1", help="correlation of advantage with length"),
    Metric(name="group.flat", kind="gauge", unit="1", help="share of groups whose siblings all got the same reward"),
    Metric(name="eval.reward", kind="gauge", unit="1", help="mean held-out reward"),
    Metric(name="eval.success", kind="gauge", unit="1", help="held-out success"),
    Metric(name="rollout.seconds", kind="gauge", unit="s", help="time to collect the step's rollouts"),
    Metric(name="rollout.dropped", kind="counter", unit="rollouts", help="left out of a batch, by reason"),
    Metric(name="client.lost", kind="counter", unit="records", help="records a client could not deliver, by kind"),
    Metric(name="policy.staleness", kind="gauge", unit="versions", help="age of the weights that wrote the samples"),
)
