"""Plans of sweeps: mistakes refused before the start, the spaces of a plan, and the scores that compare trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.sweep.tiny import LR, config
from zoo.core.errors import UserError
from zoo.tools.sweep.plan import Curve, Score, make_plan


@pytest.mark.parametrize(
    ('texts', 'rules', 'said'),
    [
        (['policy.learn.learnin_rate=log(1e-4,1e-2)'], {}, 'did you mean policy.learn.learning_rate?'),
        (['policy.learn.batch_size=choice(64,96)'], {}, '96'),
        (['policy.learn.epoch_per_collect=uniform(1,4)'], {}, 'int(LOW,HIGH)'),
        (['policy.collect.gae_lambda=uniform(.5,1.5)'], {}, '1.5'),
        (['seed=int(1,3)'], {}, '--seeds'),
        (['max_env_step=int(100,300)'], {}, 'max_env_step=100'),
        (['policy.eval.n_episode=int(1,3)'], {}, 'same in all trials'),
        ([f'{LR}=log(1e-4,1e-2,5)'], {}, '--sampler grid'),
        ([f'{LR}=log(1e-4,1e-2)'], {'sampler': 'grid'}, 'write log(0.0001,0.01,5)'),
        ([f'{LR}=log(1e-4,1e-2)'], {'sampler': 'tpee'}, 'tpe, random, grid'),
        ([f'{LR}=log(1e-4,1e-2)'], {'metric': 'mean'}, 'steps, best, last, auc'),
        ([f'{LR}=log(1e-4,1e-2)'], {'metric': 'steps'}, 'policy.eval.stop_value'),
        ([f'{LR}=log(1e-4,1e-2)'], {'pruner': 'both'}, 'median, halving'),
        ([f'{LR}=log(1e-4,1e-2)'], {'pruner': 'none'}, '--no-prune (pruner=None) ends no trial early'),
        ([f'{LR}=log(1e-4,1e-2)'], {'n': 0}, 'n is 0'),
        ([f'{LR}=log(1e-4,1e-2)'], {'seeds': 0}, 'seeds is 0'),
        ([f'{LR}=log(1e-4,1e-2)'], {'name': 'a/b'}, 'must name a folder'),
    ],
)
def test_mistake_is_one_sentence_before_anything_is_made(
    texts: list[str], rules: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(config(tmp_path), texts, **rules)
    assert said in str(caught.value) and '\n' not in str(caught.value), str(caught.value)
    assert not list(tmp_path.iterdir())


def test_value_that_some_other_values_allow_is_accepted(tmp_path: Path) -> None:
    # a batch of 512 fits into a rollout of 4 x 128 samples, not into one of 4 x 64
    texts = ['policy.learn.batch_size=choice(64,512)', 'policy.collect.n_step=choice(64,128)']
    assert list(make_plan(config(tmp_path), texts).spaces) == ['policy.learn.batch_size', 'policy.collect.n_step']


def test_without_a_space_the_default_ones_are_taken_that_the_policy_has(tmp_path: Path) -> None:
    spaces = make_plan(config(tmp_path), ['seed=3']).spaces
    assert LR in spaces and 'policy.learn.clip_ratio' in spaces and 'policy.collect.gae_lambda' in spaces


@pytest.mark.slow
def test_metric_follows_the_stop_value(tmp_path: Path) -> None:
    assert make_plan(config(tmp_path), []).score.metric == 'best'
    assert make_plan(config(tmp_path, stop_value=100.0), []).score == ('steps', 100.0, 512)


def test_grid_has_all_combinations(tmp_path: Path) -> None:
    texts = [f'{LR}=log(1e-4,1e-2,3)', 'policy.learn.epoch_per_collect=int(1,2)']
    plan = make_plan(config(tmp_path), texts, sampler='grid')
    assert plan.n_trial == 6 and len({tuple(point.values()) for point in plan.grid()}) == 6
    assert make_plan(config(tmp_path), texts, sampler='grid', n=4).n_trial == 4


def test_returns_are_means_over_seeds() -> None:
    curves = [Curve([100, 200], [10.0, 6.0]), Curve([100, 200], [2.0, 4.0])]
    assert Score('best', None, 200).of(curves) == 7.0  # (10 + 4) / 2
    assert Score('last', None, 200).of(curves) == 5.0  # (6 + 4) / 2


def test_area_is_the_mean_return_over_all_env_steps() -> None:
    # steps 0..100: 10; 100..200: 15 on average; 200..400: the last value, 20: (1000 + 1500 + 4000) / 400
    assert Score('auc', None, 400).of([Curve([100, 200], [10.0, 20.0])]) == pytest.approx(16.25)


def test_steps_are_those_of_the_first_evaluation_at_the_goal() -> None:
    curves = [Curve([100, 200, 300], [1.0, 9.0, 9.5]), Curve([100, 200], [1.0, 9.0])]
    assert Score('steps', 9.0, 1000).of(curves) == 200.0
    assert Score('steps', 9.5, 1000).of(curves) > 1000


def test_trials_that_miss_the_goal_rank_behind_all_by_solved_seeds_then_return() -> None:
    score = Score('steps', 100.0, 1000)
    solved, late = Curve([10], [100.0]), Curve([1000], [100.0])
    near, far = Curve([1000], [99.0]), Curve([1000], [-500.0])
    values = [score.of(curves) for curves in ([late, late], [solved, near], [solved, far], [near, near], [far, far])]
    assert values == sorted(values) and len(set(values)) == 5
    assert values[0] == 1000.0 < values[1] and values[-1] <= 3000


def test_words_name_the_goal() -> None:
    score = Score('steps', 475.0, 1000)
    assert score.words(900.0) == '900 steps to 475' and score.words(1001.0) == 'not all seeds reached 475'
    assert Score('best', None, 1).words(12.5) == 'best 12.5'


def test_key_that_is_given_has_no_default_space() -> None:
    plan = make_plan('cartpole_ppo', [f'{LR}=0.123'])
    assert list(plan.spaces) == ['policy.learn.clip_ratio', 'policy.learn.entropy_weight', 'policy.collect.gae_lambda']
    assert plan.resolve({}).policy.learn.learning_rate == 0.123
