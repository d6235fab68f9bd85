"""`zoo list`: one line per name; `zoo config`: keys by words and options; `zoo check-env`: its report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.forked import run_python
from tests.tools.cli.commands import LINE_ENV, Zoo
from zoo.tools.cli.listing import COMMON, KINDS, key_lines


def test_without_a_kind_the_kinds_are_listed(zoo: Zoo) -> None:
    lines = zoo('list').lines
    assert [line.split()[0] for line in lines] == list(KINDS) and all(len(line.split()) > 2 for line in lines)
    assert zoo('list --json').data['kinds'] == KINDS


def test_lines_on_keys_fit_a_terminal_and_lose_no_word() -> None:
    rows = [
        (
            'policy.learn.learning_rate = 0.00025',
            'config',
            'the step size of the optimiser, or a schedule (a number > 0)',
        ),
        (f'policy.model.encoders = {"x" * 90!r}', 'default', 'an encoder for each entry of an observation (a section)'),
    ]
    whole = key_lines(rows, None)
    assert [text.count('\n') for text in whole] == [0, 0]
    for width in (120, 80, 40):
        texts = key_lines(rows, width)
        assert all(len(line) <= width for text in texts for line in text.splitlines())
        for text, row in zip(texts, rows, strict=True):
            assert ''.join(text.split()) == ''.join(' '.join(row).split())


ENCODERS = ('attention', 'cnn', 'impala', 'mlp', 'multi', 'nature', 'simba')
LISTED = {  # how the description of a name begins
    'policies': {'ppo': ''},
    'models': {'vac': ''},
    'buffers': {'rollout': ''},
    'configs': {'cartpole_ppo': 'CartPole-v1 ppo 100,000 env steps', 'pong_ppo': 'atari/Pong ppo'},
    'envs': {'HalfCheetah-v5': 'extra mujoco', 'LunarLander-v3': 'extra box2d'},
    'encoders': dict.fromkeys(ENCODERS, 'For '),
    'cells': {'lstm': 'Gates', 'trxl': 'An'},
    'distributions': {'categorical': ''},
}


@pytest.mark.parametrize('kind', LISTED)
def test_json_has_the_names_of_the_lines_and_lines_describe_them(kind: str, zoo: Zoo) -> None:
    said = said_of(kind, zoo)
    assert list(said) == zoo(f'list {kind} --json').data[kind]
    assert all(said[name].startswith(about) for name, about in LISTED[kind].items())


def said_of(kind: str, zoo: Zoo) -> dict[str, str]:
    """Each name that `zoo list` prints, and its description."""
    lines = [line.split() for line in zoo(f'list {kind}').lines]
    return {name: ' '.join(words) for name, *words in lines}


@pytest.mark.slow
def test_every_registered_name_is_described(tmp_path: Path) -> None:
    """Runs in a separate process: other tests register names too."""
    kinds = ['policies', 'models', 'buffers', 'encoders', 'cells', 'distributions']
    (tmp_path / 'all.py').write_text(
        f'from zoo.tools.cli import main\nfor kind in {kinds}:\n    main(["list", kind])\n    print()'
    )
    blocks = run_python('all.py', cwd=tmp_path).stdout.strip().split('\n\n')
    assert len(blocks) == 6 and not [line for block in blocks for line in block.splitlines() if len(line.split()) < 4]


def test_envs_and_families_say_what_they_are(zoo: Zoo) -> None:
    said = said_of('envs', zoo)
    assert said['CartPole-v1'] == '' and 'bricks' in said['tiny_bricks']
    families = [said[name] for name in ('atari', 'envpool', 'procgen', 'torch')]
    assert len(set(families)) == 4 and all('env.game' in words for words in families)


def test_config_json_says_where_each_value_came_from(zoo: Zoo) -> None:
    rows = zoo('config cartpole_ppo --json seed=3 policy.learn.learning_rate=1e-3').data
    about = rows['seed'].pop('description')
    assert about and rows['seed'] == {'value': 3, 'range': 'an integer >= 0', 'origin': 'command line'}
    assert rows['policy.learn.learning_rate']['value'] == 1e-3
    origins = {'env.id': 'cartpole_ppo', 'policy.learn.value_weight': 'default', 'policy.collect.n_sample': 'derived'}
    assert {key: rows[key]['origin'] for key in origins} == origins


def keys_shown(zoo: Zoo, *words: str) -> list[str]:
    """The keys that `zoo config cartpole_ppo` prints."""
    return [line.split(' = ')[0] for line in zoo('config cartpole_ppo', *words).lines if line]


def test_config_shows_what_is_common_or_changed(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    changed, common = keys_shown(zoo, '--changed'), keys_shown(zoo, '--common')
    assert 'policy.eval.stop_value' in changed and 'policy.learn.target_kl' not in changed
    assert 'policy.learn.target_kl' in common and 'policy.eval.stop_value' not in common
    assert set(keys_shown(zoo)) == {*changed, *common}
    assert len(every := keys_shown(zoo, '--all')) > 100
    n_all = f'of {len(every)} keys; --all shows all'
    assert all(n_all in text for text in caplog.messages) and len(caplog.messages) == 3
    assert keys_shown(zoo, '--changed', 'policy.learn.target_kl=0.1') == [
        key for key in every if key in changed or key == 'policy.learn.target_kl'
    ]


def test_common_keys_are_those_of_the_docs() -> None:
    text = Path('docs/configs.md').read_text().split('## The keys that matter most')[1].split('Only PPG:')[0]
    assert sorted(COMMON) == sorted(re.findall(r'^\| `([\w.]+)`', text, re.MULTILINE)) and len(COMMON) == 15


def test_config_separates_sections_by_a_blank_line(zoo: Zoo) -> None:
    blocks = zoo('config cartpole_ppo policy.learn.gamma eval_freq epoch_per_collect').out.split('\n\n')
    keys = ['policy.learn.epoch_per_collect', 'policy.collect.discount_factor', 'policy.eval.eval_freq']
    assert [[line.split(' = ')[0] for line in block.splitlines()] for block in blocks] == [[key] for key in keys]


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
def test_a_word_finds_keys(words: list[str], key: str, zoo: Zoo) -> None:
    assert key in (found := keys_shown(zoo, *words)) and len(found) < 30


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['total_timesteps'], ['in zoo it is `max_env_step`.']),  # the name of another library
        (
            ['--changed', 'target_kl=0.125', 'collect.n_step=64', 'model.hidden_sizes=[8]', 'temperature=2'],
            [
                'target_kl is the key policy.learn.target_kl',
                'collect is the key policy.collect',
                'model is the key policy.model',
                'temperature is the key policy.collect.temperature',
            ],
        ),
    ],
    ids=['a key of another library', 'short keys that one section has'],
)
def test_config_says_which_key_is_meant(
    words: list[str], said: list[str], zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    shown = keys_shown(zoo, *words)
    assert caplog.messages[: len(said)] == said
    meant = {'policy.model.hidden_sizes', 'policy.learn.target_kl', 'policy.collect.n_step'}
    assert words[0] != '--changed' or meant <= set(shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    'words',
    [
        '--kwargs size=4 line.py:make env.window=2',
        'line.py:make env.window=2 --kwargs size=4',
        'line.py:make env.kwargs.size=4 env.window=2',
    ],
)
def test_check_env_takes_keys_of_the_env_anywhere(words: str, in_tmp: Path, zoo: Zoo) -> None:
    Path('line.py').write_text(LINE_ENV)
    report = zoo(f'check-env {words} --json --steps 50').data
    assert report['env'].endswith('line.py:make') and report['problems'] == []
    facts = json.dumps(report['facts'])
    assert '(2, 2)' in facts or '[2, 2]' in facts  # two observations of two numbers


@pytest.mark.long
def test_check_env_names_the_break_and_exits_1(in_tmp: Path, zoo: Zoo) -> None:
    Path('breaking.py').write_text(LINE_ENV.replace('float(action)', "float('nan')"))
    said = zoo('check-env breaking.py:Line', code=1)
    assert 'reward' in said.out and 'nan' in said.out and 'Traceback' not in said.err
    zoo('check-env CartPole-v1')


ENDLESS_ENV = LINE_ENV.replace('self.n == 10', 'False').replace('self.np_random.uniform', 'np.random.uniform')


@pytest.mark.long
def test_check_env_warns_of_an_env_without_end_and_seed_and_exits_0(in_tmp: Path, zoo: Zoo) -> None:
    Path('endless.py').write_text(ENDLESS_ENV)
    out, err = zoo('check-env endless.py:Line')
    assert err == '' and 'two resets with seed=' in out and 'env.check' in out
    assert 'no episode ended in 1000 random steps' in out and 'set env.max_episode_steps' in out
    report = zoo('check-env endless.py:Line --steps 10 --json').data
    assert report['problems'] == [] and report['warnings'] and report['facts'] and 'no episode' not in str(report)
