"""`zoo convert`: the config goes to stdout or to a file that trains; the report of each key goes to stderr."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.tools.cli.commands import Zoo
from tests.tools.importers.published import RL_ZOO3_PPO

CARTPOLE = 'convert ppo.yml --name CartPole-v1'


def test_config_goes_to_stdout_and_the_report_to_stderr(zoo: Zoo) -> None:
    out, err = zoo(CARTPOLE)
    config = yaml.safe_load(out)
    assert config['env']['id'] == 'CartPole-v1' and config['max_env_step'] == 100_000
    assert config['policy']['learn']['value_weight'] == 1.0  # SB3 does not halve the squared error
    assert re.search(r'vf_coef=0.5 .*->  policy.learn.value_weight=1.0', err)
    assert zoo(f'{CARTPOLE} --quiet') == (out, '')
    assert zoo(f'{CARTPOLE} --json --from sb3').data['config']['env'] == config['env']


@pytest.mark.slow
def test_file_that_it_writes_trains(in_tmp: Path, zoo: Zoo) -> None:
    assert zoo(f'{CARTPOLE} -o mine.yaml').out == 'train it: zoo train mine.yaml\n'
    short = 'policy.eval.n_episode=2 logger.console=off logger.tensorboard=false'
    assert zoo(f'train mine.yaml --steps 2048 {short} --json').data['env_step'] > 0


@pytest.fixture(autouse=True)
def ppo_yml(in_tmp: Path) -> None:
    Path('ppo.yml').write_text(RL_ZOO3_PPO)


DING = """
main_config = dict(
    env=dict(collector_env_num=8, n_evaluator_episode=5, env_id='CartPole-v1'),
    policy=dict(learn=dict(batch_size=64, value_norm={norm!r}), collect=dict(n_sample=256), {other}),
)
create_config = dict(env=dict(type='cartpole'), policy=dict(type='ppo'))
"""


@pytest.mark.parametrize(
    ('norm', 'other', 'said'),
    [
        (True, 'priority=True', '# policy.priority is True, which has no counterpart here'),
        ('popart', '', "# policy.learn.value_norm is 'popart' (string) but must be true or false"),
    ],
)
def test_what_is_translated_is_written_and_the_rest_as_comments(norm: object, other: str, said: str, zoo: Zoo) -> None:
    Path('ding.py').write_text(DING.format(norm=norm, other=other))
    out, err = zoo('convert ding.py -o mine.yaml --quiet', code=1)
    text = Path('mine.yaml').read_text()
    assert said in text and said[2:] in err and out.startswith('mine.yaml is to be completed')
    config = yaml.safe_load(text)
    assert config['policy']['learn']['batch_size'] == 64 and config['env']['id'] == 'CartPole-v1'


def test_force_writes_over_a_file(zoo: Zoo) -> None:
    Path('ding.py').write_text(DING.format(norm=True, other=''))
    Path('mine.yaml').write_text('mine')
    assert '--force' in zoo('convert ding.py -o mine.yaml', code=2).err and Path('mine.yaml').read_text() == 'mine'
    zoo('convert ding.py -o mine.yaml --force')
    assert 'CartPole-v1' in Path('mine.yaml').read_text()


def test_json_next_to_a_file_leaves_the_file_too(zoo: Zoo) -> None:
    out = zoo(CARTPOLE, '-o', 'my config.yaml').out
    assert shlex.split(out) == ['train', 'it:', 'zoo', 'train', 'my config.yaml']
    assert zoo(f'{CARTPOLE} -o b.yaml --json').data['config'] == yaml.safe_load(Path('b.yaml').read_text())
