"""What is read from code for RLlib, which is never run."""

from __future__ import annotations

import ast

import pytest

from zoo.tools.importers.rllib import from_rllib, settings_of

CODE = """
raise SystemExit('it was run')
config = PPOConfig().environment('CartPole-v1').env_runners(num_env_runners=2).training(train_batch_size=4000)
stop = {{'training_iteration': 3}}
tune.Tuner('PPO', param_space=config, run_config=RunConfig(stop={stop}, name='mine')).fit()
"""


@pytest.mark.parametrize(
    'stop, wanted',
    [
        ("{'num_env_steps_sampled_lifetime': 50_000}", {'max_env_step': 50_000}),
        ("{'training_iteration': 10}", {'max_env_step': 40_000}),
        ('stop', {'max_env_step': 12_000}),
        ("{TIME_TOTAL_S: 60, 'timesteps_total': 9}", {'max_env_step': 9, 'stop': [{'type': 'wall_time', 's': 60.0}]}),
        ('{f"{ENV_RUNNER_RESULTS}/{NUM_ENV_STEPS_SAMPLED_LIFETIME}": 7}', {'max_env_step': 7}),
    ],
)
def test_stop_of_a_run_config_is_translated(stop, wanted):
    config = from_rllib(settings_of(ast.parse(CODE.format(stop=stop)))).config
    assert {key: config[key] for key in ('max_env_step', 'stop') if key in config} == wanted


@pytest.mark.parametrize('stop', ['args.stop', 'make_stop()', "{'training_iteration': n + 1}", 'lambda result: True'])
def test_stop_that_the_code_works_out_is_named(stop):
    conversion = from_rllib(settings_of(ast.parse(CODE.format(stop=stop))))
    assert ('stop', 'it cannot be read without running the code; set max_env_step') in conversion.left_out
    assert 'max_env_step' not in conversion.config
