"""Diagnostics: each warning comes at its threshold, not below, once, and says what to do; real runs give warnings, too."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from zoo import serial_pipeline
from zoo.config.source import bundled_configs
from zoo.core.ranks import RunInfo
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.run.config import resolve_config
from zoo.run.observers.diagnostics import (
    CLIP_RATIO,
    LEARNED_REWARD,
    LONG,
    RULES,
    SHORT,
    Diagnostics,
    RunFacts,
    facts_of,
    max_entropy,
    signs,
)

FACTS = RunFacts(100_000, 4, shares_trunk=True, value_range=5.0, scales_returns=False, max_entropy=2.0)
VALUE = {'learn/value_weight': 0.5, 'learn/policy_loss': -0.25}

CASES: dict[str, tuple[dict[str, float], dict[str, float], int, str]] = {
    # rule: (a line just at its threshold, a line just below, lines in a row until it warns, a word of its remedy)
    'kl_not_finite': ({'learn/kl': math.inf}, {'learn/kl': 0.9}, 1, 'target_kl'),
    'kl_large': ({'learn/kl': 1.0}, {'learn/kl': 0.999}, SHORT, 'learning_rate'),
    'value_dominates': ({**VALUE, 'learn/value_loss': 50.0}, {**VALUE, 'learn/value_loss': 49.9}, SHORT, 'value_norm'),
    'returns_beyond_clip': ({'collect/return_mean': -50.0}, {'collect/return_mean': -49.9}, 1, 'range'),
    'entropy_near_zero': ({'learn/entropy': 0.02}, {'learn/entropy': 0.0201}, 1, 'entropy_weight'),
    'returns_large': ({'collect/return_mean': -1000.1}, {'collect/return_mean': -1000.0}, 1, 'reward_norm'),
    'critic_useless': ({'learn/explained_variance': 0.0}, {'learn/explained_variance': 0.001}, LONG, 'value_norm'),
    'returns_outside': ({'learn/return_outside': 0.1}, {'learn/return_outside': 0.099}, SHORT, 'Widen'),
    'no_episode': ({'collect/episode': 0}, {'collect/episode': 1}, 1, 'max_episode_steps'),
}
STEP = {'entropy_near_zero': 25_000, 'no_episode': 40_000}


def said(name: str, facts: RunFacts, line: dict[str, float], env_step: int, n_line: int) -> list[str]:
    """Returns the messages of one rule for a line that comes n_line times; [] if one of them is empty."""
    found = [dict(signs(facts, line, env_step)).get(name, '') for _ in range(n_line)]
    return found if all(found) else []


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == RULES.keys()


@pytest.mark.parametrize('name', CASES)
def test_a_rule_warns_at_its_threshold_once_with_a_remedy(name: str, caplog: pytest.LogCaptureFixture) -> None:
    line, _, n_line, remedy = CASES[name]
    facts = FACTS if name != 'returns_large' else FACTS._replace(value_range=None)
    advice = Diagnostics(facts)
    with caplog.at_level(logging.WARNING, 'zoo.run.observers.diagnostics'):
        texts = [advice.look(STEP.get(name, 10_000), line) for _ in range(n_line + 3)]
    assert [len(text) for text in texts] == [*[0] * (n_line - 1), 1, 0, 0, 0]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage() == texts[n_line - 1][0]
    assert remedy in record.getMessage()


@pytest.mark.parametrize('name', CASES)
def test_a_rule_is_silent_below_its_threshold(name: str) -> None:
    _, line, n_line, _ = CASES[name]
    facts = FACTS if name != 'returns_large' else FACTS._replace(value_range=None)
    advice = Diagnostics(facts)
    assert not any(advice.look(STEP.get(name, 10_000), line) for _ in range(n_line + 3))
    assert not any(advice.look(STEP.get(name, 10_000), {}) for _ in range(n_line + 3))  # a line without the metric


@pytest.mark.parametrize('name', [name for name, case in CASES.items() if case[2] > 1])
def test_a_line_that_is_well_begins_the_count_again(name: str) -> None:
    line, well, n_line, _ = CASES[name]
    advice = Diagnostics(FACTS)
    lines = [*[line] * (n_line - 1), well, *[line] * (n_line - 1)]
    assert not any(advice.look(10_000, each) for each in lines)
    assert advice.look(10_000, line)


@pytest.mark.parametrize(
    ('name', 'facts', 'env_step'),
    [
        ('value_dominates', FACTS._replace(shares_trunk=False), 10_000),
        ('returns_beyond_clip', FACTS._replace(scales_returns=True), 10_000),
        ('returns_beyond_clip', FACTS._replace(value_range=None), 10_000),
        ('returns_large', FACTS._replace(scales_returns=True), 10_000),
        ('entropy_near_zero', FACTS._replace(max_entropy=None), 10_000),
        ('entropy_near_zero', FACTS, 25_001),  # later than the first quarter of the run
        ('no_episode', FACTS, 39_999),
        ('no_episode', FACTS._replace(first_env_step=200_000), 239_999),  # 39,999 of its own
    ],
)
def test_a_rule_is_silent_where_it_does_not_apply(name: str, facts: RunFacts, env_step: int) -> None:
    line, _, n_line, _ = CASES[name]
    assert not said(name, facts, line, env_step, n_line)


def test_large_returns_of_long_episodes_are_small_where_a_discount_ends_them() -> None:
    """Pendulum: 200 steps of -6.3. At gamma = 0.9 a critic learns 10 / 200 of -1,260, at 0.99 half of -1,260."""
    line = {'collect/return_mean': -1260.0, 'collect/episode_len_mean': 200.0}
    facts = FACTS._replace(value_range=None)
    assert not said('returns_large', facts._replace(horizon=10.0), line, 10_000, SHORT)
    assert said('returns_large', facts._replace(horizon=100.0), line, 10_000, SHORT)


def test_a_clipped_critic_is_compared_with_the_returns_that_it_learns() -> None:
    """Qbert: raw returns of 150 in 200 steps, whose signs are .05 a step: .05 * 100 = 5 within the horizon of .99."""
    facts = FACTS._replace(value_range=0.1, horizon=100.0)
    line = {'collect/return_mean': 150.0, 'collect/episode_len_mean': 200.0}
    assert '75' in said('returns_beyond_clip', facts, line, 3072, 1)[0]  # half of 150 lies within the horizon
    assert ' 5 ' in said('returns_beyond_clip', facts, {**line, LEARNED_REWARD: 0.05}, 3072, 1)[0]
    assert not said('returns_beyond_clip', facts, {**line, LEARNED_REWARD: 0.0005}, 3072, 1)


def test_a_clipped_critic_that_gets_there_within_a_twentieth_of_the_run_is_no_trouble() -> None:
    """From 0 to 5 in steps of .1 are 50 updates: more than a twentieth of 999, not of 1001."""
    facts = FACTS._replace(value_range=0.1)
    line = {'collect/return_mean': 5.0}
    assert said('returns_beyond_clip', facts._replace(n_move=999.0), line, 3072, 1)
    assert not said('returns_beyond_clip', facts._replace(n_move=1001.0), line, 3072, 1)


def test_a_small_value_loss_does_not_dominate_a_policy_loss_of_zero() -> None:
    line = {'learn/value_weight': 1.0, 'learn/policy_loss': 0.0, 'learn/value_loss': 0.99}
    assert not said('value_dominates', FACTS, line, 10_000, SHORT)
    assert said('value_dominates', FACTS, {**line, 'learn/value_loss': 1.0}, 10_000, SHORT)


def test_the_largest_entropy_is_that_of_uniform_choices() -> None:
    assert max_entropy(Discrete(8)) == pytest.approx(math.log(8))
    assert max_entropy(MultiDiscrete((2, 3), (0, 0), (2,))) == pytest.approx(math.log(6))
    assert max_entropy(MultiBinary((3,))) == pytest.approx(math.log(8))
    assert max_entropy(Box(np.zeros(2), np.ones(2))) is None


def config(tmp_path: Path, env: str = 'CartPole-v1', model: Any = None, **learn: Any) -> dict[str, Any]:
    return dict(
        seed=0,
        max_env_step=2048,
        env=dict(id=env, collector_env_num=4, evaluator_env_num=1),
        logger=dict(root=str(tmp_path), console='off', tensorboard=False, freq=128),
        policy=dict(
            eval=dict(n_episode=1),
            learn=dict(batch_size=64, **learn),
            collect=dict(n_step=32),
            **({} if model is None else dict(model=model)),
        ),
    )


FOUND = RunFacts(2048, 4, False, None, False, math.log(2), pytest.approx(100.0))
UNSCALED = dict(value_norm=False, reward_norm=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('learn', 'model', 'want'),
    [
        (dict(value_loss='clip', **UNSCALED), None, FOUND._replace(value_range=0.2, n_move=16.0)),
        (dict(value_norm=True), None, FOUND._replace(scales_returns=True)),
        (
            dict(value_loss={'type': 'error_clip', 'range': 9.0}, value_norm=False),
            dict(shared_encoder=True),
            FOUND._replace(shares_trunk=True, value_range=3.0),
        ),
        (dict(value_norm=False), dict(shared_encoder='detach'), FOUND),
    ],
)
def test_facts_are_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learn: Any, model: Any, want: RunFacts
) -> None:
    seen = []
    monkeypatch.setattr('zoo.run.build.facts_of', lambda *args: seen.append(facts_of(*args)) or seen[-1])
    serial_pipeline(config(tmp_path, model=model, clip_ratio=0.2, **learn))
    assert seen == [want]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('env', 'learn', 'said', 'n'),
    [
        ('Pendulum-v1', UNSCALED, 'nothing scales', 1),
        ('Pendulum-v1', UNSCALED, 'policy.learn.reward_norm=true', 1),
        ('Pendulum-v1', {**UNSCALED, 'value_norm': True}, 'nothing scales', 0),
        # CartPole's least return is 9
        ('CartPole-v1', {**UNSCALED, 'value_loss': 'clip', 'clip_ratio': 0.2}, 'follows errors up to 0.2', 1),
    ],
)
def test_a_run_warns_of_returns_that_nothing_scales_and_of_a_value_clip_that_is_small_for_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, env: str, learn: Any, said: str, n: int
) -> None:
    with caplog.at_level(logging.WARNING, 'zoo.run.observers.diagnostics'):
        serial_pipeline(config(tmp_path, env=env, **learn))
    assert sum(said in record.getMessage() for record in caplog.records) == n
    assert CLIP_RATIO * 0.2 < 9


@pytest.mark.long
@pytest.mark.parametrize(
    ('overrides', 'n'), [([], 0), (['policy.learn.value_norm=false', 'policy.collect.discount_factor=0.99'], 1)]
)
def test_pendulum_ppo_of_readme_does_not_warn_of_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, overrides: list[str], n: int
) -> None:
    quiet = [f'logger.root={tmp_path}', 'logger.console=off', 'logger.tensorboard=false', 'policy.eval.n_episode=1']
    with caplog.at_level(logging.WARNING, 'zoo.run.observers.diagnostics'):
        serial_pipeline('pendulum_ppo', seed=1, max_env_step=12_288, overrides=[*quiet, *overrides])  # 3 rollouts
    assert [('reward_norm=true' in record.getMessage()) for record in caplog.records] == [True] * n


class Random(NamedTuple):
    """What a random policy gets in an env: spaces like those of the env, and the line of the log that its episodes give.

    learned: mean reward of a step as the policy gets it, where the env changes rewards for training, e.g. to their sign.
    """

    obs_space: Space
    action_space: Space
    return_: float
    length: float
    learned: float | None = None


def box(*shape: int) -> Box:
    return Box(np.full(shape, -1.0), np.full(shape, 1.0))


def pixels(*shape: int) -> Box:
    return Box(np.zeros(shape), np.full(shape, 255.0), 'uint8')


ATARI = pixels(4, 84, 84)
RANDOM: dict[str, Random] = {  # by the first words of the names of bundled configs
    'acrobot': Random(box(6), Discrete(3), -500.0, 500.0),
    'ant': Random(box(105), box(8), -43.0, 153.0),
    'bipedalwalker': Random(box(24), box(4), -105.0, 354.0),
    'breakout': Random(ATARI, Discrete(4), 1.1, 180.0, 0.006),
    'cartpole': Random(box(4), Discrete(2), 22.6, 22.6),
    'connect_four': Random(box(84), Discrete(7), 1.0, 21.0),  # of games the most that there is
    'halfcheetah': Random(box(17), box(6), -260.0, 1000.0),
    'hopper': Random(box(11), box(3), 18.0, 22.4),
    'humanoid': Random(box(45), box(17), 110.0, 23.6),
    'kuhn_poker': Random(box(7), Discrete(2), 2.0, 2.0),
    'leduc_poker': Random(box(30), Discrete(3), 13.0, 4.0),
    'lunarlander': Random(box(8), Discrete(4), -183.0, 92.0),
    'lunarlander_continuous': Random(box(8), box(2), -201.0, 116.0),
    'minatar': Random(box(10, 10, 4), Discrete(3), 0.36, 9.7),
    'minigrid': Random(pixels(7, 7, 3), Discrete(7), 1.0, 100.0),  # the most that there is
    'minigrid_memory': Random(box(147), Discrete(3), 1.0, 100.0),
    'mountaincar_continuous': Random(box(2), box(1), -33.0, 999.0),
    'pendulum': Random(box(3), box(1), -1231.0, 200.0),
    'pendulum_bins': Random(box(3), MultiDiscrete((11,), (0,), (1,)), -1231.0, 200.0),
    'pong': Random(ATARI, Discrete(6), -21.0, 800.0, -0.026),
    'procgen': Random(pixels(64, 64, 3), Discrete(15), 2.5, 200.0),
    'qbert': Random(ATARI, Discrete(6), 150.0, 200.0, 0.05),
    'remember_cue': Random(box(3), Discrete(2), 0.5, 21.0),
    'simple_spread': Random(box(18), Discrete(5), -100.0, 25.0),  # far below what random agents get
    'simple_spread_mappo': Random(
        Dict({'obs': box(18), 'state': box(54), 'agent': Discrete(3)}), Discrete(5), -100.0, 25.0
    ),
    'simple_tag': Random(box(16), Discrete(5), 100.0, 25.0),
    'swimmer': Random(box(8), box(2), 1.8, 1000.0),
    'taxi': Random(Discrete(500), Discrete(6), -768.0, 196.0),
    'tictactoe': Random(box(18), Discrete(9), 1.0, 5.0),
    'tiny_bricks': Random(box(10, 10, 4), Discrete(3), 0.24, 7.4),
    'two_step_game': Random(box(3), Discrete(2), 8.0, 2.0),
    'walker2d': Random(box(17), box(6), 1.8, 21.7),
}


def first_signs(name: str, **learn: Any) -> dict[str, str]:
    """The warnings of a bundled config after its third rollout, if actions are still random. Args: learn: other options."""
    random = RANDOM[max((words for words in RANDOM if name.startswith(words)), key=len)]
    cfg = resolve_config(name, overrides=[f'policy.learn.{key}={value}' for key, value in learn.items()])
    make = POLICY_REGISTRY.get(cfg.policy.type)
    policy = make(cfg.policy, random.obs_space, random.action_space, run=RunInfo(n_draw=2 if 'off' in name else None))
    line = {'collect/return_mean': random.return_, 'collect/episode_len_mean': random.length}
    if random.learned is not None:
        line[LEARNED_REWARD] = random.learned
    return dict(signs(facts_of(cfg, policy), line, 3 * cfg.policy.collect.n_sample))


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(bundled_configs()))
def test_no_bundled_config_warns_of_its_own_critic_in_its_first_rollouts(name: str) -> None:
    assert not first_signs(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'learn'),
    [
        ('pendulum_ppo', dict(value_loss='clip', value_norm='false')),
        ('taxi_ppo', dict(value_loss='clip')),
        ('qbert_ppo', dict(clip_ratio=0.001)),
    ],
)
def test_a_bundled_config_without_what_scales_its_returns_warns(name: str, learn: dict[str, Any]) -> None:
    assert 'returns_beyond_clip' in first_signs(name, **learn)


def test_a_rule_reads_the_metrics_of_its_learner_and_names_it(caplog: pytest.LogCaptureFixture) -> None:
    line = {'learn/kl': 0.1, 'learn/prey/kl': 1.0}
    first, prey = Diagnostics(FACTS), Diagnostics(FACTS, 'prey')
    for _ in range(SHORT):
        first.look(10_000, line)
        prey.look(10_000, line)
    (record,) = caplog.records
    assert record.getMessage().startswith('policy prey: ')
