"""Settings: flat names outside, refused when wrong, one owner or several inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_lightning.errors import SettingError
from agent_lightning.learner.algorithms import algorithm_of
from agent_lightning.learner.learner import settled
from agent_lightning.trainer.config import TrainConfig

ENOUGH = {"total_steps": 10, "warmup_trajectories": 0, "warmup_steps": 2}


def read(**given) -> TrainConfig:
    return TrainConfig.read({**ENOUGH, **given}, env={})


def test_defaults_are_those_of_the_design():
    config = read()
    assert (config.credit.credit_assignment, config.credit.credit_decay, config.credit.credit_floor) == (
        "linear_decay",
        0.3,
        0.1,
    )
    assert config.credit.reward_normalizer == 0.8
    assert (config.loop.group_size, config.loop.tasks_per_step, config.loop.eval_every) == (8, 8, 10)
    assert (config.learner.lora_rank, config.learner.lora_alpha) == (16, 32.0)
    assert settled(config.learner, algorithm_of("grpo")).clip_epsilon == 0.2
    assert (config.runner.rollout_deadline, config.runner.max_attempts, config.runner.lease_seconds) == (600, 3, 60)


def test_an_unknown_setting_names_the_nearest_one():
    with pytest.raises(SettingError, match="'learning_rat' is no setting: did you mean learning_rate"):
        read(learning_rat=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_size", 1),
        ("total_steps", 0),
        ("credit_decay", 1.5),
        ("learning_rate", -1.0),
        ("train_temperature", 0.0),
        ("dtype", "float16"),
        ("lora_rank", -1),
        ("lora_layers", 0),
        ("port", 70_000),
        ("credit_assignment", "magic"),
        ("algorithm", "ppo2"),
        ("replicas", -1),
        ("time_limit", 0),
        ("group_size", "many"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name, value):
    with pytest.raises(SettingError, match=name):
        read(**{name: value})


def test_what_has_no_default_must_be_set():
    with pytest.raises(SettingError, match="total_steps must be set"):
        TrainConfig.read({}, env={})


def test_argument_beats_environment_beats_file(tmp_path: Path):
    file = tmp_path / "lightning.toml"
    file.write_text("total_steps = 10\nwarmup_trajectories = 0\nwarmup_steps = 2\ngroup_size = 4\nseed = 1\n")
    env = {"AGENT_LIGHTNING_GROUP_SIZE": "6", "AGENT_LIGHTNING_SEED": "2", "OTHER": "x"}
    config = TrainConfig.read({"seed": 3}, file=file, env=env)
    assert config.loop.group_size == 6
    assert config.loop.seed == config.learner.seed == config.gateway.run_seed == 3


def test_a_broken_file_is_named(tmp_path: Path):
    file = tmp_path / "lightning.toml"
    file.write_text("total_steps = = 3")
    with pytest.raises(SettingError, match=r"lightning\.toml is not TOML"):
        TrainConfig.read(file=file, env={})


def test_a_run_that_ends_inside_warm_up_is_refused():
    with pytest.raises(SettingError, match="ends inside warm-up"):
        TrainConfig.read({"total_steps": 100}, env={})


def test_component_has_an_alias_and_may_be_one_name():
    assert read(component_of_interest="solver").loop.component == ("solver",)


def test_a_list_of_components_may_be_written_with_commas():
    assert read(component="solver, checker").loop.component == ("solver", "checker")
    env = {"AGENT_LIGHTNING_COMPONENT": "solver,checker"}
    assert TrainConfig.read(ENOUGH, env=env).loop.component == ("solver", "checker")


def test_the_agents_own_settings_in_the_same_file_are_left_alone(tmp_path: Path):
    file = tmp_path / "lightning.toml"
    file.write_text(
        'total_steps = 10\nwarmup_trajectories = 0\nwarmup_steps = 2\nendpoint = "http://host:8000"\napi_key = "alw-1"\n'
        'trace_sampling_rate = 0.5\nredact = ["secret"]\ndebug_trace = true\n'
        '[client]\nprofiling_mode = true\nmax_step_timeout = "5s"\n[reward_weights]\nstyle = 0.5\n'
    )
    config = TrainConfig.read(file=file, env={})
    assert config.loop.reward_weights == {"style": 0.5}
    assert config.server.max_step_timeout == "30s"
    assert not {"endpoint", "api_key", "client", "redact", "debug_trace"} & config.record().keys()


def test_another_table_is_refused_by_name(tmp_path: Path):
    file = tmp_path / "lightning.toml"
    file.write_text("total_steps = 10\n[training]\nseed = 3\n")
    with pytest.raises(SettingError, match=r"the table \[training\] is not known"):
        TrainConfig.read(file=file, env={})


@pytest.mark.parametrize(
    "given",
    [
        {"credit_assignment": "uniform", "credit_decay": 0.5},
        {"credit_assignment": "final_only", "credit_floor": 0.2},
        {"credit_assignment": "exponential_decay", "credit_floor": 0.2},
    ],
)
def test_a_credit_setting_that_the_strategy_does_not_use_is_refused(given):
    unused = next(name for name in given if name != "credit_assignment")
    with pytest.raises(SettingError, match=f"{unused} is .*does not use"):
        read(**given)
    assert read(credit_assignment="exponential_decay", credit_decay=0.5).credit.credit_decay == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("micro_tokens", 0),
        ("weight_decay", -0.1),
        ("adam_betas", [0.9, 1.0]),
        ("adam_betas", [-0.1, 0.9]),
        ("adam_eps", 0.0),
        ("heartbeat_seconds", 0.0),
        ("hold_seconds", -1.0),
        ("success_reward", float("nan")),
        ("success_reward", float("inf")),
        ("reward_weights", {"style": float("inf")}),
        ("failure_reward", float("nan")),
        ("reward_range", [1.0, 1.0]),
        ("reward_range", [1.0, 0.0]),
        ("reward_deadline", -1.0),
        ("time_limit", float("nan")),
        ("max_step_timeout", "soon"),
        ("retry_strategy", "hope"),
        ("credit_window", 0),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_its_name(name, value):
    with pytest.raises(SettingError, match=name):
        read(**{name: value})


def test_keys_are_left_out_of_what_is_written_down():
    config = read(worker_key="alw-1", admin_key="ala-1", read_key="alo-1", seed=3)
    assert config.secrets == ("worker_key", "admin_key", "read_key")
    assert config.record() == {**ENOUGH, "seed": 3}
    assert TrainConfig.of({**config.record(), "host": "0.0.0.0"}).server.host == "0.0.0.0"  # readers need no keys


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"algorithm": "dpo", "credit_decay": 0.3}, "credit_decay is set, but algorithm 'dpo' does not use it"),
        ({"algorithm": "dpo", "clip_epsilon": 0.2}, "clip_epsilon is set"),
        ({"algorithm": "sft", "kl_coef": 0.1}, "kl_coef is set"),
        ({"algorithm": "grpo", "gae_lambda": 0.95}, "gae_lambda is set, .* choose one of ppo"),
        ({"algorithm": "rloo", "divide_by_std": True}, "divide_by_std is set"),
        ({"algorithm": "grpo", "kl_in": "reward", "kl_coef": 0.1}, "made from whole rewards"),
        ({"algorithm": "grpo", "loss_tokens": 100}, "loss_scale = 'constant'"),
        ({"algorithm": "ppo", "gae_over": "trajectory", "credit_decay": 0.5}, "gae_over = 'trajectory'"),
        ({"algorithm": "sft", "sft_steps": 3}, "leave it out"),
        ({"algorithm": "ppo", "sft_steps": 6, "critic_warmup": 4}, "never be trained by 'ppo'"),
        ({"minibatches": 9}, "tasks_per_step = 8"),
    ],
)
def test_a_setting_that_the_algorithm_does_not_use_is_refused_even_at_its_default(given, words):
    with pytest.raises(SettingError, match=words):
        read(**given)


def test_the_algorithm_brings_its_rule_and_a_warm_start_another_one_first():
    config = read(algorithm="ppo", sft_steps=2, sft_best=3)
    assert [config.algorithm_at(step) for step in (0, 1, 2)] == ["sft", "sft", "ppo"]
    assert [config.credit_at(step).advantage for step in (1, 2)] == ["best", "step_rewards"]
    assert config.credit.advantage == "step_rewards"


def test_what_is_left_open_is_the_algorithms_own():
    dapo = settled(read(algorithm="dapo").learner, algorithm_of("dapo"))
    assert (dapo.clip_epsilon, dapo.clip_epsilon_high, dapo.loss_scale, dapo.kl_in) == (0.2, 0.28, "token", "loss")
    given = settled(read(algorithm="gspo", clip_epsilon=0.1).learner, algorithm_of("gspo"))
    assert (given.clip_epsilon, given.clip_epsilon_high, given.loss_scale) == (0.1, 4e-4, "rollout")
    ppo = settled(read(algorithm="ppo", kl_coef=0.1).learner, algorithm_of("ppo"))
    assert (ppo.kl_in, ppo.kl_form, ppo.whiten_advantages) == ("reward", "k1", True)
