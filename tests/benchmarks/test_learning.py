"""benchmarks/learning.py: it runs bundled configs without their early stop, once for each record."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from learning import EVAL_SEED, PARTS, bench_config, is_done, main, raw_path, steps_to, verdict, write_table
from learning_rows import ROWS

from zoo.core.seeding import child_seeds, stream
from zoo.run.config import resolve_config


def test_parts_say_the_target_of_each_config():
    assert list(PARTS) == list(ROWS)
    assert PARTS['cartpole_ppo'] == 'return 500 is the target'
    assert PARTS['remember_cue_ppo policy.model.recurrent=null policy.learn.sequence.len=16'] == 'no target'


@pytest.mark.many
@pytest.mark.parametrize('name', ROWS)
def test_each_row_is_a_config(name: str):
    assert bench_config(name)['policy']['type']


@pytest.mark.parametrize(
    ('low', 'high', 'word'),
    [
        (91.0, 95.0, 'ahead'),
        (90.0, 90.0, 'level'),
        (80.0, 90.5, 'level'),
        (80.0, 89.9, 'behind'),
        (90 + 1e-13, 91.0, 'level'),
        (80.0, 90 - 1e-13, 'level'),
    ],
)
def test_verdict_is_read_from_the_interval(low: float, high: float, word: str):
    assert verdict(low, high, 90.0) == word


@pytest.mark.slow
def test_anchor_of_taxi_is_the_mean_return_of_its_best_policy_from_the_starts_of_the_row():
    """By value iteration over the env's table: an entry is the transition (probability 1, state, reward, end)."""
    row = ROWS['taxi_ppo']
    envs = [gymnasium.make('Taxi-v4') for _ in range(4)]
    entries = [[envs[0].unwrapped.P[state][action][0] for action in range(6)] for state in range(500)]
    _, state_after, reward, ends = (np.array(x) for x in np.array(entries, dtype=object).transpose(2, 0, 1).tolist())
    value = np.zeros(500)
    for _ in range(100):
        gain = reward + np.where(ends, 0.0, value[state_after])
        value = gain.max(1)
    assert value @ envs[0].unwrapped.initial_state_distrib == pytest.approx(7.93)
    returns = []
    for env, seed in zip(envs, child_seeds(stream(EVAL_SEED, 'evaluate'), 0, 4), strict=True):
        state, _ = env.reset(seed=seed)
        for _ in range(row.n_episode // 4):
            returns.append(value[state])
            while not ends[state, gain[state].argmax()]:
                state = env.step(gain[state].argmax())[0]
            env.step(gain[state].argmax())
            state, _ = env.reset()
    assert np.mean(returns) == pytest.approx(row.anchor.value)


def test_steps_to_is_the_median_over_seeds_of_the_first_evaluation_there():
    runs = [{'curve': [[10, 1.0], [20, 5.0], [30, 4.0]]}, {'curve': [[10, 6.0]]}, {'curve': [[10, 1.0], [40, 5.0]]}]
    assert steps_to(runs, 5.0) == '20'
    assert steps_to(runs, 5.5) == '1 of 3 seeds get there'


def record(seed: int, commit: str) -> dict[str, object]:
    resolved = resolve_config(bench_config('cartpole_pg'), seed=seed).to_dict()
    facts = {'commit': commit, 'date': '2026-01-01', 'machine': 'one', 'versions': {'torch': '2'}, 'resolved': resolved}
    numbers = {'env_step': 99_645, 'wall_s': 6.0, 'return_mean': 480.0 + seed, 'drawn_mean': 400.0}
    return {'config': 'cartpole_pg', 'env': 'CartPole-v1', 'seed': seed, 'curve': [[10_000, 450.0]], **numbers, **facts}


def written(folder: Path, *records: dict[str, object]) -> None:
    (folder / 'learning_raw').mkdir()
    for k, each in enumerate(records):
        (folder / 'learning_raw' / f'{k}.json').write_text(json.dumps(each))


def test_table_has_the_interquartile_mean_of_seeds_and_what_is_behind(tmp_path: Path):
    written(tmp_path, *(record(seed, 'abc') for seed in range(4)))
    write_table(tmp_path, 'x')
    (row,) = (
        line for line in (tmp_path / 'learning.md').read_text().splitlines() if line.startswith('| `cartpole_pg`')
    )
    # of 480, 481, 482, 483 the middle half is 481, 482
    assert '| behind | 481.5 [' in row and '| 480, 481, 482, 483 | 400 [400, 400] | 450 [' in row


def test_table_of_two_commits_is_refused(tmp_path: Path):
    written(tmp_path, record(0, 'abc'), record(1, 'def'))
    with pytest.raises(SystemExit, match='of the commits abc, def, but a table is of one: check out one of them'):
        write_table(tmp_path, 'x')


def test_run_into_a_table_of_another_commit_is_refused_before_it_begins(tmp_path: Path):
    written(tmp_path, record(0, 'abc'))
    with pytest.raises(SystemExit, match=r'of the commits .*abc.*, but a table is of one'):
        main(['--only', 'cartpole_ppo', '--seeds', '1', '-o', str(tmp_path)])
    assert len(list((tmp_path / 'learning_raw').iterdir())) == 1


def test_table_with_a_seed_of_tuning_is_refused(tmp_path: Path):
    written(tmp_path, record(0, 'abc'), record(103, 'abc'))
    with pytest.raises(SystemExit, match='have seed 103, but seeds from 100 on are for tuning'):
        write_table(tmp_path, 'x')


@pytest.mark.soak
def test_tuning_keeps_every_setting_that_was_tried(tmp_path: Path):
    words = ['--scale', '0.02', '--seeds', '1', '-o', str(tmp_path), '--tune']
    assert main([*words, 'cartpole_ppo policy.learn.value_norm=true']) == main([*words, 'cartpole_ppo']) == 0
    rows = [
        line for line in (tmp_path / 'learning_tuning.md').read_text().splitlines() if line.startswith('| CartPole')
    ]
    assert {row.split(' | ')[1] for row in rows} == {'`cartpole_ppo policy.learn.value_norm=true`', '`cartpole_ppo`'}
    assert all('(100)' in row for row in rows)


def test_bench_config_scales_the_env_steps_and_never_stops_early():
    whole, tenth = bench_config('cartpole_ppo'), bench_config('cartpole_ppo', 0.1)
    assert (whole['max_env_step'], tenth['max_env_step']) == (100_000, 10_000)
    assert resolve_config(whole).policy.eval.stop_value is None


def test_is_done_knows_the_record_of_this_config_and_scale_only(tmp_path: Path):
    name = 'cartpole_ppo policy.learn.precision=bf16'
    path = raw_path(name, 3, tmp_path)
    assert path.name == 'cartpole_ppo__policy.learn.precision=bf16_seed3.json'
    assert not is_done(name, 3, tmp_path)
    resolved = resolve_config(bench_config(name, 0.1), seed=3).to_dict()
    found = {'resolved': resolved, 'commit': 'abc', 'returns': [0.0] * 100}
    path.write_text(json.dumps(found))
    assert is_done(name, 3, tmp_path, scale=0.1) and not is_done(name, 3, tmp_path)
    assert is_done(name, 3, tmp_path, 0.1, 'abc') and not is_done(name, 3, tmp_path, 0.1, 'def')
    path.write_text(json.dumps({**found, 'returns': [0.0] * 20}))  # the row asks for 100 episodes
    assert not is_done(name, 3, tmp_path, 0.1, 'abc')
    resolved['policy']['learn']['batch_size'] *= 2
    path.write_text(json.dumps(found))
    assert not is_done(name, 3, tmp_path, scale=0.1)


def test_raw_path_of_many_overrides_is_a_name_that_a_folder_can_hold(tmp_path: Path):
    names = [f'cartpole_ppo {"policy.learn.reward_norm=true " * 20}seed={seed}' for seed in range(2)]
    paths = [raw_path(name, 3, tmp_path) for name in names]
    assert len({*paths}) == 2 and all(len(path.name) < 255 and path.name.endswith('_seed3.json') for path in paths)
