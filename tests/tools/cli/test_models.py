"""`zoo import`: a run folder of a model that another library trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.cli.commands import Zoo

MODEL = Path(__file__).parents[1] / 'exchange' / 'models' / 'ppo_discrete.zip'


@pytest.mark.slow
def test_import_writes_a_run_that_is_evaluated(in_tmp: Path, zoo: Zoo) -> None:
    out, err = zoo(f'import {MODEL} --env CartPole-v1 -o run')
    assert out.splitlines()[1] == 'evaluate it: zoo eval run'
    assert 'read as stable-baselines3 2.9.2 PPO' in err and '_last_obs  left out: the env is reset' in err
    assert zoo('eval run --episodes 2 --json').data['env_step'] == 256


def test_import_without_folder_or_env_gets_a_sentence(in_tmp: Path, zoo: Zoo) -> None:
    assert 'got no -o RUN' in zoo(f'import {MODEL}', code=2).err
    assert 'needs an env' in zoo(f'import {MODEL} -o run', code=2).err
    assert 'does not exist' in zoo('import nothing.zip --env CartPole-v1 -o run', code=2).err


@pytest.mark.slow
def test_export_for_sb3_writes_a_zip_that_is_imported_again(in_tmp: Path, zoo: Zoo) -> None:
    zoo(f'import {MODEL} --env CartPole-v1 -o run')
    out, _ = zoo('export run --format sb3')
    assert out.startswith(
        'policy.zip: a zip for PPO.load of stable-baselines3; its actions, read back, differ by 0.0e+00'
    )
    zoo('import policy.zip --env CartPole-v1 -o again')
    assert 'files end in .zip' in zoo('export run --format sb3 -o policy.onnx', code=2).err
