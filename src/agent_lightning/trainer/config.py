"""Settings of a training: flat names outside (DESIGN: names are fixed), one config a part inside.

A name belongs to every part whose config has a field of that name. Explicit argument > environment
(AGENT_LIGHTNING_ + upper case) > file > default. Wrong and unknown names are refused with what is allowed.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from agent_lightning.client.config import ClientConfig
from agent_lightning.credit import CreditConfig
from agent_lightning.errors import SettingError
from agent_lightning.gateway.sampling import GatewayConfig
from agent_lightning.gateway.upstreams import UpstreamConfig
from agent_lightning.learner.algorithms import WARM_START, algorithm_of
from agent_lightning.learner.learner import LearnerConfig, check_used
from agent_lightning.learner.schedule import Schedule
from agent_lightning.replica.replica import ReplicaConfig
from agent_lightning.runner.queue import RunnerConfig

PREFIX = "AGENT_LIGHTNING_"
ALIASES = {"component_of_interest": "component"}
SECRETS = ("worker_key", "admin_key", "read_key")  # never written down, never shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The training loop itself."""

    total_steps: int  # optimizer steps
    tasks_per_step: int = 8
    group_size: int = 8  # siblings of one task
    shuffle_tasks: bool = True  # anew each epoch; False keeps the order of the file
    seed: int = 0
    eval_every: int = 10  # steps between validations
    success_reward: float = 1.0  # a rollout with at least this reward is a success
    keep_checkpoints: int = 3  # beside the best one
    component: tuple[str, ...] = ()  # components of interest; empty: all
    max_trajectory_length: int = 20  # newest steps of a rollout that are kept
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # by part; 1 where none is given
    time_limit: float | None = None  # seconds of training after which the run ends in good order
    test_rollouts: bool = True  # measure the test split before and after

    @property
    def order_seed(self) -> int | None:
        """What the order of tasks hangs on; None keeps the given one."""
        return self.seed if self.shuffle_tasks else None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("total_steps", 1, 10_000_000),
            ("tasks_per_step", 1, 100_000),
            ("group_size", 2, 4096),
            ("eval_every", 1, 10_000_000),
            ("keep_checkpoints", 1, 10_000),
            ("max_trajectory_length", 1, 10_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"{name} is {value}: wanted {low} to {high}")
        if self.time_limit is not None and not self.time_limit > 0:
            raise SettingError(f"time_limit is {self.time_limit}: seconds above 0 are wanted, or none")
        numbers = {"success_reward": self.success_reward}
        numbers |= {f"reward_weights[{name!r}]": value for name, value in self.reward_weights.items()}
        for name, number in numbers.items():
            if not math.isfinite(number):
                raise SettingError(f"{name} is {number}: a finite number is wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = "127.0.0.1"
    port: int | None = None  # None: 8000 for `serve`, any free one for `train`
    durability: Literal["process", "power"] = "process"
    reward_deadline: float = 86_400.0  # seconds after the end of a live rollout
    chat_template: str | None = None  # Jinja text, or a path to it
    max_step_timeout: float | str = "30s"  # of agents that set none themselves, as the next one
    retry_strategy: str = "exponential_backoff"
    keys_file: str | None = None  # keys that come and go; None: keys.json in the folder that holds the runs
    worker_key: str | None = field(default=None, repr=False)  # fixed ones, beside those of the file
    admin_key: str | None = field(default=None, repr=False)
    read_key: str | None = field(default=None, repr=False)
    upstreams: Mapping[str, UpstreamConfig] = field(default_factory=dict)  # providers of untrained components, by name

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise SettingError(f"port is {self.port}: wanted 0 to 65535")
        if not 0.0 <= self.reward_deadline <= 1e9:
            raise SettingError(f"reward_deadline is {self.reward_deadline}: seconds from 0 to 1e9 are wanted")
        self.client()

    def client(self) -> ClientConfig:
        """What agents are told. Raises SettingError for what no agent would take."""
        return ClientConfig(max_step_timeout=self.max_step_timeout, retry_strategy=self.retry_strategy)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkConfig:
    """What is trained on what; from the file or the command line, or given as objects to Trainer."""

    agent: str | None = None  # "module:attribute"
    reward: str | None = None  # "module:function"
    train_tasks: str | None = None  # JSON lines: {"id"?, "input", "meta"?}
    val_tasks: str | None = None
    test_tasks: str | None = None
    run: str | None = None  # name of the run; None: made from agent and time
    runs: str = "runs"  # folder that holds the runs


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    loop: LoopConfig
    credit: CreditConfig = field(default_factory=CreditConfig)
    schedule: Schedule = field(default_factory=Schedule)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replica: ReplicaConfig
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    work: WorkConfig = field(default_factory=WorkConfig)
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)  # flat settings that were set

    def record(self) -> dict[str, Any]:
        """The flat settings that make this config again, keys left out; of a config made by hand, too."""
        return without_secrets(self.given or _flat(self))

    def algorithm_at(self, step: int) -> str:
        """Of the step's update: a run may begin by imitating its best siblings."""
        return WARM_START if step < self.learner.sft_steps else self.learner.algorithm

    def credit_at(self, step: int) -> CreditConfig:
        """Credit with the advantage rule of that step's algorithm."""
        return replace(self.credit, advantage=algorithm_of(self.algorithm_at(step)).advantage)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the keys that are set."""
        return tuple(name for name in SECRETS if getattr(self.server, name) is not None)

    @classmethod
    def read(
        cls, given: Mapping[str, Any] | None = None, *, file: Path | None = None, env: Mapping[str, str] | None = None
    ) -> TrainConfig:
        """Settings from arguments, environment and file, in this order of precedence. Raises SettingError."""
        settings = {
            **_from_file(file),
            **_from_env(os.environ if env is None else env),
            **_known(given or {}, "argument"),
        }
        return cls.of(settings)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TrainConfig:
        flat = dict(settings)
        flat.setdefault("model", "smollm2")
        if isinstance(flat.get("component"), str):
            flat["component"] = [name.strip() for name in flat["component"].split(",") if name.strip()]
        made = {name: _make(kind, flat) for name, kind in _PARTS.items()}
        replica = replace(_make(ReplicaConfig, flat, skip=("learner",), learner=made["learner"]))
        gateway = replace(made["gateway"], run_seed=made["loop"].seed, policy=replica.policy)
        rule = algorithm_of(made["learner"].algorithm).advantage
        credit = replace(made["credit"], advantage=rule)
        config = cls(**{**made, "gateway": gateway, "credit": credit}, replica=replica, given=dict(settings))
        _check_together(config)
        return config


_PARTS: dict[str, Any] = {
    "loop": LoopConfig,
    "credit": CreditConfig,
    "schedule": Schedule,
    "learner": LearnerConfig,
    "gateway": GatewayConfig,
    "runner": RunnerConfig,
    "server": ServerConfig,
    "work": WorkConfig,
}
_STATE = ("risen", "multiplier", "run_seed", "attempts_kept", "advantage")  # fields that are no settings
_TABLES = ("reward_weights", "upstreams")
_CLIENT = frozenset(item.name for item in fields(ClientConfig))  # in one file with ours, and the agents' to judge
NAMES = frozenset(
    item.name for kind in (*_PARTS.values(), ReplicaConfig) for item in fields(kind) if item.name not in _STATE
) - {"learner"}


def _make(kind: Any, flat: Mapping[str, Any], *, skip: tuple[str, ...] = (), **given: Any) -> Any:
    """One part's config out of the flat settings that it knows."""
    own = {item.name for item in fields(kind)} - set(skip) - set(_STATE)
    missing = [
        item.name
        for item in fields(kind)
        if item.name in own and item.default is MISSING and item.default_factory is MISSING and item.name not in flat
    ]
    if missing:
        raise SettingError(f"{', '.join(missing)} must be set: there is no default")
    chosen = {name: value for name, value in flat.items() if name in own}
    return kind(**{**_coerced(kind, chosen), **given})


def _coerced(kind: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the declared types: numbers and lists may come as text out of the environment."""
    import typing

    hints = typing.get_type_hints(kind)
    result = {}
    for name, value in chosen.items():
        try:
            result[name] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise SettingError(f"{name} is {value!r}: {reason[:1].lower()}{reason[1:]}") from None
    return result


def _known(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The settings under their own names. Raises SettingError for a name that nobody has, with the nearest ones."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        own = ALIASES.get(name, name)
        if own not in NAMES:
            near = difflib.get_close_matches(own, NAMES, n=2)
            hint = f": did you mean {' or '.join(near)}?" if near else f"; known are: {', '.join(sorted(NAMES))}"
            raise SettingError(f"{source} {name!r} is no setting{hint}")
        if value is not None:
            result[own] = value
    return result


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        with file.open("rb") as handle:
            return _known(_ours(tomllib.load(handle), file), f"{file}:")
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{file} is not TOML: {error}") from error


def _ours(content: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The training's part of a settings file. Raises SettingError for a table that nobody reads."""
    found = {}
    for name, value in content.items():
        own = ALIASES.get(name, name)
        if own not in NAMES and (own in _CLIENT or (name == "client" and isinstance(value, dict))):
            continue
        if isinstance(value, dict) and own not in _TABLES:
            raise SettingError(
                f"{file}: the table [{name}] is not known: settings stand at the top of the file, beside [client], "
                "[reward_weights] and [upstreams.NAME]"
            )
        found[name] = value
    return found


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in SECRETS}


def secrets_of(file: Path | None, env: Mapping[str, str]) -> dict[str, Any]:
    """Keys from environment and file, for a run that is taken up again: its record has none."""
    settings = {**_from_file(file), **_from_env(env)}
    return {name: settings[name] for name in SECRETS if name in settings}


def _flat(config: TrainConfig) -> dict[str, Any]:
    """Values other than the defaults, by their flat names."""
    # last wins: what the replicas are told of model, policy and context is what counts
    parts = (config.gateway, config.server, config.work, config.runner, config.credit, config.schedule)
    found: dict[str, Any] = {}
    for part in (*parts, config.learner, config.loop, config.replica):
        for item in fields(part):
            value = getattr(part, item.name)
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            derived = part is config.gateway and item.name in ("context_length", "policy")
            if item.name in NAMES and value != default and not derived:
                found[item.name] = value
    if "upstreams" in found:
        found["upstreams"] = {name: asdict(upstream) for name, upstream in found["upstreams"].items()}
    return found


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Training settings in the environment. Names of other parts (client, cache) are left to them."""
    found: dict[str, Any] = {}
    for key, value in env.items():
        name = key.removeprefix(PREFIX).lower()
        name = ALIASES.get(name, name)
        if key.startswith(PREFIX) and name in NAMES:
            found[name] = value
    return found


def _check_together(config: TrainConfig) -> None:
    """What no part can see alone."""
    loop, schedule = config.loop, config.schedule
    per_step = loop.tasks_per_step * loop.group_size
    quiet = -(-schedule.warmup_trajectories // per_step) if schedule.warmup_trajectories else 0
    if quiet + schedule.warmup_steps >= loop.total_steps:
        raise SettingError(
            f"the run ends inside warm-up: {quiet} steps until warmup_trajectories = {schedule.warmup_trajectories}, "
            f"then warmup_steps = {schedule.warmup_steps}, but total_steps = {loop.total_steps}; raise total_steps or "
            "lower warmup_trajectories and warmup_steps"
        )
    check_used(config.given, config.learner)
    before = config.learner.sft_steps + config.learner.critic_warmup
    if before >= loop.total_steps:
        raise SettingError(
            f"sft_steps and critic_warmup take {before} steps, but total_steps = {loop.total_steps}: the policy would "
            f"never be trained by {config.learner.algorithm!r}; raise total_steps or lower them"
        )
    if config.learner.minibatches > loop.tasks_per_step:
        raise SettingError(
            f"minibatches is {config.learner.minibatches}, but a step has tasks_per_step = {loop.tasks_per_step} groups, "
            "which are not cut: lower minibatches or raise tasks_per_step"
        )
    for name, upstream in config.server.upstreams.items():
        if both := set(upstream.components) & set(loop.component):
            raise SettingError(
                f"{', '.join(sorted(both))} cannot be trained (component) and be served by upstreams.{name} as well"
            )
    _check_credit(config)


def _check_credit(config: TrainConfig) -> None:
    """Settings of credit that the strategy, or the episodes of a critic, cannot honour."""
    strategy = config.credit.credit_assignment
    if config.credit.gae_over == "trajectory":
        for name in ("credit_assignment", "credit_decay", "credit_floor", "credit_window"):
            if name in config.given:
                raise SettingError(
                    f"{name} is {config.given[name]}, but gae_over = 'trajectory' takes rewards where they were given: "
                    "leave it out, or set gae_over = 'call'"
                )
    unused = {"exponential_decay": ("credit_floor",), "linear_decay": ()}
    for name in unused.get(strategy, ("credit_decay", "credit_floor")):
        if name in config.given:
            raise SettingError(
                f"{name} is {config.given[name]}, but credit_assignment {strategy!r} does not use it: leave it out, or "
                "choose 'linear_decay'"
            )
