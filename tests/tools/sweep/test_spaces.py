"""Spaces as text, with one sentence per mistake; default spaces of each policy: all configs take them, each has an effect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import differing, job_config
from zoo import POLICY_REGISTRY, make_policy, serial_pipeline
from zoo.config.section import ConfigError
from zoo.config.source import bundled_configs
from zoo.policy.ppg import PPGPolicy
from zoo.run.config import resolve_config
from zoo.tools.sweep.plan import make_plan
from zoo.tools.sweep.spaces import DEFAULT_SPACES, Space, default_spaces, parse_space, split_spaces


@pytest.mark.parametrize(
    ('raw', 'space'),
    [
        ('log(1e-4,1e-2)', Space('log', 1e-4, 1e-2)),
        ('uniform(.1, .4)', Space('uniform', 0.1, 0.4)),
        ('uniform(-1,1,3)', Space('uniform', -1.0, 1.0, n_point=3)),
        ('int(1,10)', Space('int', 1.0, 10.0)),
        ('choice(64,128)', Space('choice', choices=('64', '128'))),
        ('{64, 128}', Space('choice', choices=('64', '128'))),
        ('64,128', Space('choice', choices=('64', '128'))),
        ('choice([64,64],[128])', Space('choice', choices=('[64,64]', '[128]'))),
        ('choice({start: 1, end: 0},1e-3)', Space('choice', choices=('{start: 1, end: 0}', '1e-3'))),
        ('{start: 1e-3, end: 0}', None),  # a schedule is a value, no space
        ('1e-3', None),
        ('[64,64]', None),
    ],
)
def test_text_is_read_as_space_or_value(raw: str, space: Space | None) -> None:
    assert parse_space('a.b', raw) == space
    assert space is None or parse_space('a.b', str(space)) == space  # the printed form can be typed again


@pytest.mark.parametrize(
    ('raw', 'said'),
    [
        ('log(0,1)', 'no logarithm'),
        ('log(-1,1)', 'no logarithm'),
        ('uniform(2,1)', 'write uniform(1,2)'),
        ('int(3,3)', 'write a.b=3'),
        ('int(1.5,3)', 'two integers'),
        ('log(1e-4)', 'two numbers'),
        ('log(1,2,3,4)', 'two numbers'),
        ('uniform(a,b)', 'two numbers'),
        ('uniform(0,inf)', 'two numbers'),
        ('log(1,2,1)', '1 points'),
        ('log(1,2', 'cut off'),
        ('{1,2', 'cut off'),
        ('choice(1)', 'two values'),
        ('4,', 'two values'),
        ('choice(1,1)', 'two values'),
        ('{}x', 'cut off'),
        ('loguniform(1,2)', 'did you mean log?'),
        ('unifrom(1,2)', 'did you mean uniform?'),
        ('normal(0,1)', 'the spaces are log('),
    ],
)
def test_mistake_is_one_sentence(raw: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_space('a.b', raw)
    assert said in str(caught.value) and len(caught.value.problems) == 1 and 'a.b=' in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        split_spaces(['a=log(0,1)', 'b=1', 'c', 'b=2'])
    assert len(caught.value.problems) == 3  # log(0, 1); no value; b given twice


def test_spaces_and_overrides_are_distinguished() -> None:
    spaces, fixed = split_spaces(['seed=1', 'a.b=int(1,2)', 'c={x: 1}'])
    assert list(spaces) == ['a.b'] and fixed == ['seed=1', 'c={x: 1}']


def test_values_stay_inside_when_rounded() -> None:
    space = Space('uniform', 0.123446, 0.2)
    assert space.text(0.123446) == '0.123446'  # rounded to 0.1234 it would be below the low end
    assert space.text(0.1523467) == '0.1523'
    assert float(Space('log', 1e-4, 0.00999999).text(0.00999999)) <= 0.00999999


def test_grid_of_logarithm_has_equal_ratios() -> None:
    assert [float(text) for text in Space('log', 1e-4, 1e-2, n_point=3).grid()] == [1e-4, 1e-3, 1e-2]
    assert Space('uniform', 0.0, 1.0, n_point=3).grid() == ['0.0', '0.5', '1.0']
    assert Space('int', 1, 3).grid() == ['1', '2', '3']


def test_probes_of_a_float_space_are_its_ends_and_no_integer() -> None:
    ends = Space('uniform', 1.0, 3.0).probes()
    assert ends[:2] == ['1.0', '3.0'] and not float(ends[2]).is_integer()


DOCS = Path(__file__).parents[3] / 'docs' / 'sweeps.md'


BUNDLED = [name for name in POLICY_REGISTRY.names() if POLICY_REGISTRY.get(name).__module__.startswith('zoo.')]


def spaces_of(texts: dict[str, str]) -> dict[str, Space]:
    return split_spaces([f'{key}={text}' for key, text in texts.items()])[0]


def test_every_bundled_policy_has_spaces_of_its_own() -> None:
    assert sorted(DEFAULT_SPACES) == sorted(BUNDLED)


@pytest.mark.slow
@pytest.mark.parametrize('name', bundled_configs())
def test_every_bundled_config_takes_the_spaces_of_its_policy(name: str) -> None:
    """The config takes all its spaces, both ends of each, and all low or all high ends together."""
    plan = make_plan(name, [])
    cfg = resolve_config(name)
    assert list(plan.spaces) == list(default_spaces(cfg)) and len(plan.spaces) >= 3
    for i in (0, -1):
        plan.resolve({key: space.probes()[i] for key, space in plan.spaces.items()})


@pytest.mark.parametrize('name', sorted(DEFAULT_SPACES))
def test_every_policy_can_be_made_at_the_ends_of_its_spaces(name: str) -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}}
    for i in (0, 1):
        made = make_policy(config, [f'{key}={s.probes()[i]}' for key, s in spaces_of(DEFAULT_SPACES[name]).items()])
        assert made.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@pytest.mark.soak
@pytest.mark.parametrize('name', sorted(DEFAULT_SPACES))
def test_every_key_of_a_default_space_changes_what_is_trained(name: str, tmp_path: Path) -> None:
    """A key without an effect wastes a dimension of the sweep. Oracle: an end of the key's space trains another policy."""
    resolved = resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}})

    def trained(*words: str) -> dict[str, Any]:
        config = job_config(tmp_path, policy=dict(type=name, learn=_learn(name)), **_buffer(name))
        for other in {'epoch_per_collect', 'target_freq'} - set(resolved.policy.learn):
            config['policy']['learn'].pop(other, None)
        return serial_pipeline(config, max_env_step=640, overrides=words).policy.state_dict()['model']

    plain = trained()
    for key, space in spaces_of(DEFAULT_SPACES[name]).items():
        low, high = space.probes()[:2]
        changes = (differing(plain, trained(f'{key}={end}')) for end in (high, low))
        assert any(changes), f'{key} of {name} changes nothing'


def _learn(name: str) -> dict[str, Any]:
    """A learning rate at which updates are clipped; auxiliary phases after every second rollout of 64 env steps."""
    learn: dict[str, Any] = {'learning_rate': 0.03, 'target_freq': 2}
    if not name.startswith(('ppg', 'dna')):
        return learn
    phases = {'aux_freq': 2, 'aux_batch_size': 32, **({'aux_window': 8} if name == 'ppg_reloaded' else {})}
    return {**learn, **phases, 'aux_train_epoch': 1}


def _buffer(name: str) -> dict[str, Any]:
    if name == 'ppg_offpolicy':
        return {'buffer': {'policy': {'n_sample': 64}, 'value': {'n_sample': 64}}}
    if name == 'dqn':  # 320 gradient steps
        return {'buffer': {'n_sample': 64, 'update_per_collect': 16}}
    return {'buffer': {'n_sample': 64}} if name.endswith('offpolicy') else {}


@pytest.mark.slow
def test_key_without_an_effect_is_left_out() -> None:
    def keys(**policy: Any) -> list[str]:
        config = {'env': {'id': 'CartPole-v1'}, 'policy': policy}
        return [key.rpartition('.')[2] for key in make_plan(config, []).spaces]

    assert keys(type='ppo') == ['learning_rate', 'clip_ratio', 'entropy_weight', 'gae_lambda']
    assert 'clip_ratio' not in keys(type='ppo', learn={'surrogate': 'none'})
    assert 'clip_ratio' not in keys(type='ppg', learn={'policy_loss': 'kl'})
    assert 'gae_lambda' not in keys(type='ppo', collect={'estimator': {'type': 'n_step', 'n': 3}})
    assert 'decay' not in keys(type='ppo_ewma', learn={'proximal': 'behaviour'})


def test_own_policy_has_the_spaces_of_the_bundled_one_that_it_is_derived_from() -> None:
    name = 'own_ppg_of_default_spaces_test'
    if name not in POLICY_REGISTRY:
        POLICY_REGISTRY.register(name)(type('Own', (PPGPolicy,), {}))
    cfg = resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}})
    assert default_spaces(cfg) == DEFAULT_SPACES['ppg']


def test_documentation_names_the_keys_of_each_policy() -> None:
    rows = re.findall(r'^\| (`\w+`(?:, `\w+`)*) \| (.*) \|$', DOCS.read_text(encoding='utf-8'), flags=re.M)
    said = {name: set(re.findall(r'`(\w+)`', keys)) for names, keys in rows for name in re.findall(r'`(\w+)`', names)}
    for name, spaces in DEFAULT_SPACES.items():
        words = said[name]
        for _ in range(2):  # resolves 'those of ppg', which include 'those of ppo'
            words = words.union(*(said[other] for other in words if other in said))
        assert {key.rpartition('.')[2] for key in spaces} <= words, name
