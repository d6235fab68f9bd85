"""`zoo list`: names with a line each; `zoo config`: keys by words and options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.tools.cli.processes import run_in
from zoo.tools.cli.command import main
from zoo.tools.cli.listing import COMMON, KINDS


def test_without_a_kind_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS) and all(len(line.split()) > 2 for line in lines)
    assert main(['list', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['kinds'] == KINDS


@pytest.mark.parametrize('kind', [kind for kind in KINDS if kind != 'parts'])
def test_json_has_the_names_of_the_lines(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', kind, '--json']) == 0
    names = json.loads(capsys.readouterr().out)[kind]
    assert main(['list', kind]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names


@pytest.mark.long
@pytest.mark.parametrize('kind', ['policies', 'models', 'buffers', 'encoders', 'distributions'])
def test_every_registered_name_is_described(kind: str) -> None:
    lines = run_in('list', kind).stdout.splitlines()  # in a process of its own: other tests register names too
    assert lines and not [line for line in lines if len(line.split()) < 4]


def test_configs_show_env_policy_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', 'configs']) == 0
    lines = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines['cartpole_ppo'] == 'CartPole-v1 ppo 100,000 env steps'
    assert lines['pong_ppo'].startswith('atari/Pong ppo')


def test_envs_show_the_extra_that_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', 'envs']) == 0
    lines = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines['HalfCheetah-v5'] == 'extra mujoco' and lines['LunarLander-v3'] == 'extra box2d'
    assert lines['CartPole-v1'] == '' and 'bricks' in lines['tiny_bricks']


def test_families_and_encoders_say_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', 'envs']) == 0
    said = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    families = [said[name] for name in ('atari', 'envpool', 'procgen', 'torch')]
    assert len(set(families)) == 4 and all('env.game' in words for words in families)
    assert main(['list', 'encoders']) == 0
    said = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    built_in = ('cnn', 'impala', 'mlp', 'multi', 'nature', 'simba')
    assert all(said[name].startswith('For ') for name in built_in)


def keys_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The keys that `zoo config cartpole_ppo` prints."""
    assert main(['config', 'cartpole_ppo', *words]) == 0
    return [line.split(' = ')[0] for line in capsys.readouterr().out.splitlines() if line]


def test_config_shows_what_is_common_or_changed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    changed, common = keys_shown(['--changed'], capsys), keys_shown(['--common'], capsys)
    assert 'policy.eval.stop_value' in changed and 'policy.learn.target_kl' not in changed
    assert 'policy.learn.target_kl' in common and 'policy.eval.stop_value' not in common
    assert set(keys_shown([], capsys)) == {*changed, *common}
    assert len(every := keys_shown(['--all'], capsys)) > 100
    n_all = f'of {len(every)} keys; --all shows all'
    assert all(n_all in text for text in caplog.messages) and len(caplog.messages) == 3
    assert keys_shown(['--changed', 'policy.learn.target_kl=0.1'], capsys) == [
        key for key in every if key in changed or key == 'policy.learn.target_kl'
    ]


def test_common_keys_are_those_of_the_docs() -> None:
    text = Path('docs/configs.md').read_text().split('## The keys that people turn')[1].split('Only PPG:')[0]
    assert sorted(COMMON) == sorted(re.findall(r'^\| `([\w.]+)`', text, re.MULTILINE)) and len(COMMON) == 15


def test_config_separates_sections_by_a_blank_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['config', 'cartpole_ppo', 'policy.learn.gamma', 'eval_freq', 'epoch_per_collect']) == 0
    blocks = capsys.readouterr().out.split('\n\n')
    assert [[line.split(' = ')[0] for line in block.splitlines()] for block in blocks] == [
        ['policy.learn.epoch_per_collect'],
        ['policy.collect.discount_factor'],
        ['policy.eval.eval_freq'],
    ]


@pytest.mark.parametrize(
    ('words', 'key'),
    [
        (['Learning_Rate'], 'policy.learn.learning_rate'),
        (['policy.collect'], 'policy.collect.n_step'),
        (['normalise observations'], 'policy.model.obs_norm'),  # its meaning
        (['vf_coef'], 'policy.learn.value_weight'),  # its name in other libraries
        (['--quiet', 'n_envs'], 'env.collector_env_num'),
    ],
)
def test_a_word_finds_keys(words: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert key in (found := keys_shown(words, capsys)) and len(found) < 30


def test_what_another_library_calls_a_key_is_said(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    keys_shown(['total_timesteps'], capsys)
    assert caplog.messages[0] == 'in zoo it is `max_env_step`.'


def test_a_word_that_finds_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['config', 'cartpole_ppo', 'foobar']) == 2
    assert 'no key has foobar in its name or meaning' in capsys.readouterr().err


def test_a_short_key_is_taken_where_one_section_has_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    shorts = ['target_kl=0.125', 'collect.n_step=64', 'model.hidden_sizes=[8]']
    keys = ['policy.model.hidden_sizes', 'policy.learn.target_kl', 'policy.collect.n_step']
    assert set(keys) <= set(keys_shown(['--changed', *shorts], capsys))
    assert caplog.messages[:3] == [
        'target_kl is the key policy.learn.target_kl',
        'collect is the key policy.collect',
        'model is the key policy.model',
    ]
    assert main(['config', 'cartpole_ppo', 'type=ppg']) == 2  # of policy, model and buffer
    assert 'unknown key type' in capsys.readouterr().err
