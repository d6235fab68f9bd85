"""A run folder accepts only a config that continues its run, from the command line and from Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from zoo.config.yaml_io import save_yaml
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config
from zoo.run.folder import refuse_other_configs


@pytest.mark.parametrize(
    'before, now, said',
    [
        (['seed=0'], ['seed=0'], ''),
        (['max_env_step=4_096'], ['max_env_step=8_192', 'policy.eval.stop_value=null', 'logger.freq=5'], ''),
        (['max_env_step=8_192'], ['max_env_step=4_096'], 'max_env_step=8192, not 4096'),
        (['exp_name=a'], ['exp_name=b'], 'exp_name=a, not b'),
        ([], ['init_from=runs/x'], 'init_from=null, not runs/x'),
        (['init_from=runs/x'], [], ''),
        (['init_from=runs/x'], ['init_from=./runs/x'], ''),
        ([], ['env.on_error=restart', 'env.step_timeout=9', 'env.vectorization=async', 'policy.learn.compile=on'], ''),
        (
            ['max_env_step=2_048', 'policy.learn.learning_rate={start: 1e-3, end: 0, over: 2_048}'],
            ['max_env_step=4_096', 'policy.learn.learning_rate={start: 1e-3, end: 0, over: 2_048}'],
            '',
        ),
        (
            ['policy.learn.learning_rate={start: 1e-3, end: 0}'],
            ['policy.learn.learning_rate=3e-4'],
            'has policy.learn.learning_rate={start: 0.001, end: 0.0, over: 100000}, not 0.0003; name',
        ),
        (['env.kwargs.sutton_barto_reward=true'], [], 'env.kwargs.sutton_barto_reward=true, not nothing'),
        (
            [],
            ['policy.model.hidden_sizes=[8]', 'policy.learn.batch_size=32'],
            'policy.model.hidden_sizes=[64, 64], not [8]',
        ),
    ],
)
def test_folder_of_a_run_takes_only_a_config_that_continues_it(
    before: list[str], now: list[str], said: str, tmp_path: Path
) -> None:
    begun(tmp_path / 'run', *before)
    if not said:
        refuse_other_configs('cartpole_ppo', [now], [tmp_path / 'run'])
        return
    with pytest.raises(UserError, match=re.escape(said)):
        refuse_other_configs('cartpole_ppo', [now], [tmp_path / 'run'])


def test_project_may_be_moved_but_the_code_in_it_is_of_the_same_file(tmp_path: Path) -> None:
    file = begun(tmp_path / 'run')
    file.write_text(file.read_text().replace('CartPole-v1', '/elsewhere/my_env.py:MyEnv'))
    (tmp_path / 'my_env.py').write_text('class MyEnv: ...\nclass Other: ...\n')
    refuse_other_configs('cartpole_ppo', [[f'env.id={tmp_path}/my_env.py:MyEnv']], [tmp_path / 'run'])
    with pytest.raises(UserError, match='my_env.py:MyEnv, not .*my_env.py:Other'):
        refuse_other_configs('cartpole_ppo', [[f'env.id={tmp_path}/my_env.py:Other']], [tmp_path / 'run'])


def test_key_that_the_run_did_not_know_counts_only_if_it_is_given(tmp_path: Path) -> None:
    """A run that was trained by a version of zoo without the key has no value for it."""
    file = begun(tmp_path / 'run')
    file.write_text(''.join(line for line in file.read_text().splitlines(True) if 'dual_clip' not in line))
    refuse_other_configs('cartpole_ppo', [[]], [tmp_path / 'run'])
    with pytest.raises(UserError, match='dual_clip=nothing, not 3'):
        refuse_other_configs('cartpole_ppo', [['policy.learn.dual_clip=3']], [tmp_path / 'run'])


def files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob('*') if file.is_file()}


def begun(folder: Path, *overrides: str) -> Path:
    """Makes a folder like that of a run: a config and an empty checkpoint, whose name is enough here; returns the config."""
    (folder / 'checkpoints').mkdir(parents=True)
    save_yaml(resolve_config('cartpole_ppo', overrides), folder / 'config.yaml')
    (folder / 'checkpoints' / 'step_2048.safetensors').touch()
    return folder / 'config.yaml'


@pytest.mark.parametrize(
    ('sections', 'options', 'said'),
    [
        (dict(policy=dict(learn=dict(learning_rate=0.5))), {}, 'policy.learn.learning_rate=0.001, not 0.5'),
        ({}, dict(seed=3), 'seed=0, not 3'),
        ({}, dict(max_env_step=128), 'max_env_step=256, not 128'),
        ({}, dict(overrides=['policy.learn.learning_rate=0.5']), 'policy.learn.learning_rate=0.001, not 0.5'),
        (dict(env=dict(id='CartPole-v1')), {}, 'env.id=tests.envs:limit_env, not CartPole-v1'),
        ({}, dict(env='CartPole-v1'), 'env.id=tests.envs:limit_env, not CartPole-v1'),
    ],
)
def test_python_is_refused_a_folder_of_other_settings_as_the_command_is(
    sections: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path, finished: Path
) -> None:
    before = files(finished)
    with pytest.raises(UserError) as refused:
        serial_pipeline(job_config(tmp_path, **sections), run_dir=finished, **options)
    wanted = f'the run in {finished} has {said}; name another --run-dir, or give the values that it has'
    way = f"(zoo train --resume {finished} KEY=VALUE continues it with other values, in Python resume='{finished}')"
    assert wanted in str(refused.value) and way in str(refused.value)
    assert files(finished) == before


def test_resume_from_python_may_change_settings_in_the_same_folder(tmp_path: Path, finished: Path) -> None:
    other = job_config(tmp_path, max_env_step=320, policy=dict(learn=dict(learning_rate=0.5)))
    by_resume = serial_pipeline(other, resume=finished)
    assert (by_resume.run_dir, by_resume.env_step) == (finished, 320)
    again = serial_pipeline(run_dir=finished, overrides=['policy.learn.learning_rate=0.1', 'max_env_step=384'])
    assert (again.run_dir, again.env_step) == (finished, 384)  # without a config, only the overrides change
