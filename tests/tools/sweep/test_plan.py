"""What is refused before a sweep starts, each in a sentence, and what a plan holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.sweep.tiny import LR, config
from zoo.core.errors import UserError
from zoo.tools.sweep.plan import make_plan


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
    # batches of 512 do not fit into rollouts of 4 x 64, but into those of 4 x 128
    texts = ['policy.learn.batch_size=choice(64,512)', 'policy.collect.n_step=choice(64,128)']
    assert list(make_plan(config(tmp_path), texts).spaces) == ['policy.learn.batch_size', 'policy.collect.n_step']


def test_without_a_space_the_default_ones_are_taken_that_the_policy_has(tmp_path: Path) -> None:
    spaces = make_plan(config(tmp_path), ['seed=3']).spaces
    assert LR in spaces and 'policy.learn.clip_ratio' in spaces and 'policy.collect.gae_lambda' in spaces


def test_metric_follows_the_stop_value(tmp_path: Path) -> None:
    assert make_plan(config(tmp_path), []).score.metric == 'best'
    assert make_plan(config(tmp_path, stop_value=100.0), []).score == ('steps', 100.0, 512)


def test_grid_has_all_combinations(tmp_path: Path) -> None:
    texts = [f'{LR}=log(1e-4,1e-2,3)', 'policy.learn.epoch_per_collect=int(1,2)']
    plan = make_plan(config(tmp_path), texts, sampler='grid')
    assert plan.n_trial == 6 and len({tuple(point.values()) for point in plan.grid()}) == 6
    assert make_plan(config(tmp_path), texts, sampler='grid', n=4).n_trial == 4
