"""`zoo list`: one line per name; `zoo config`: keys by words and options; `zoo check-env`: its report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.forked import run_python
from tests.tools.cli.own_code import LINE_ENV
from zoo.tools.cli.command import main
from zoo.tools.cli.listing import COMMON, KINDS


def test_without_a_kind_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS) and all(len(line.split()) > 2 for line in lines)
    assert main(['list', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['kinds'] == KINDS


NAMED = {
    'policies': ('ppo', ''),
    'models': ('vac', ''),
    'buffers': ('rollout', ''),
    'configs': ('cartpole_ppo', 'CartPole-v1 ppo 100,000 env steps'),
    'envs': ('HalfCheetah-v5', 'extra mujoco'),
    'encoders': ('simba', 'For '),
    'distributions': ('categorical', ''),
}


@pytest.mark.parametrize('kind', NAMED)
def test_json_has_the_names_of_the_lines(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', kind, '--json']) == 0
    names, (name, about) = json.loads(capsys.readouterr().out)[kind], NAMED[kind]
    lines = said_of(kind, capsys)
    assert list(lines) == names and lines[name].startswith(about)


def said_of(kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Each name that `zoo list` prints, and its description."""
    assert main(['list', kind]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {name: ' '.join(words) for name, *words in lines}


@pytest.mark.slow
def test_every_registered_name_is_described(tmp_path: Path) -> None:
    """Runs in a separate process: other tests register names too."""
    kinds = ['policies', 'models', 'buffers', 'encoders', 'distributions']
    (tmp_path / 'all.py').write_text(
        f'from zoo.tools.cli import main\nfor kind in {kinds}:\n    main(["list", kind])\n    print()'
    )
    blocks = run_python('all.py', cwd=tmp_path).stdout.strip().split('\n\n')
    assert len(blocks) == 5 and not [line for block in blocks for line in block.splitlines() if len(line.split()) < 4]


def test_envs_and_families_say_what_they_are_and_need(capsys: pytest.CaptureFixture[str]) -> None:
    said = said_of('envs', capsys)
    assert said['LunarLander-v3'] == 'extra box2d' and said['CartPole-v1'] == '' and 'bricks' in said['tiny_bricks']
    families = [said[name] for name in ('atari', 'envpool', 'procgen', 'torch')]
    assert len(set(families)) == 4 and all('env.game' in words for words in families)
    assert said_of('configs', capsys)['pong_ppo'].startswith('atari/Pong ppo')
    said = said_of('encoders', capsys)
    assert all(said[name].startswith('For ') for name in ('cnn', 'impala', 'mlp', 'multi', 'nature', 'simba'))


def test_config_json_says_where_each_value_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['config', 'cartpole_ppo', '--json', 'seed=3', 'policy.learn.learning_rate=1e-3']) == 0
    rows = json.loads(capsys.readouterr().out)
    about = rows['seed'].pop('description')
    assert about and rows['seed'] == {'value': 3, 'range': 'an integer >= 0', 'origin': 'command line'}
    assert rows['policy.learn.learning_rate']['value'] == 1e-3
    origins = {'env.id': 'cartpole_ppo', 'policy.learn.value_weight': 'default', 'policy.collect.n_sample': 'derived'}
    assert {key: rows[key]['origin'] for key in origins} == origins


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


@pytest.mark.slow
@pytest.mark.parametrize(
    'words',
    [
        '--kwargs size=4 line.py:make env.window=2',
        'line.py:make env.window=2 --kwargs size=4',
        'line.py:make env.kwargs.size=4 env.window=2',
    ],
)
def test_check_env_takes_keys_of_the_env_anywhere(words: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path('line.py').write_text(LINE_ENV)
    assert main(['check-env', *words.split(), '--json', '--steps', '50']) == 0
    report = json.loads(capsys.readouterr().out)
    assert report['env'].endswith('line.py:make') and report['problems'] == []
    facts = json.dumps(report['facts'])
    assert '(2, 2)' in facts or '[2, 2]' in facts  # two observations of two numbers


@pytest.mark.slow
def test_check_env_names_the_break_and_exits_1(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path('breaking.py').write_text(LINE_ENV.replace('float(action)', "float('nan')"))
    assert main(['check-env', 'breaking.py:Line']) == 1
    out, err = capsys.readouterr()
    assert 'reward' in out and 'nan' in out and 'Traceback' not in err
    assert main(['check-env', 'CartPole-v1']) == 0


ENDLESS_ENV = LINE_ENV.replace('self.n == 10', 'False').replace('self.np_random.uniform', 'np.random.uniform')


@pytest.mark.slow
def test_check_env_warns_of_an_env_without_end_and_seed_and_exits_0(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path('endless.py').write_text(ENDLESS_ENV)
    assert main(['check-env', 'endless.py:Line']) == 0
    out, err = capsys.readouterr()
    assert err == '' and 'two resets with seed=0' in out and 'env.check' in out
    assert 'no episode ended in 1000 random steps' in out and 'set env.max_episode_steps' in out
    assert main(['check-env', 'endless.py:Line', '--steps', '10', '--json']) == 0
    report = json.loads(capsys.readouterr().out)
    assert report['problems'] == [] and report['warnings'] and report['facts'] and 'no episode' not in str(report)
