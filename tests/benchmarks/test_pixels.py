"""benchmarks/pixels.py: it stops, continues, reads and reports runs on images; here on CartPole, which is faster."""

from __future__ import annotations

import json
import sys

import pixel_records
import pixels
import pytest
import torch
from pixel_records import Progress, cost, progress, read_policy, record_random, thinned
from pixel_runs import RUNS, Run
from pixel_tables import page, seconds_for

from zoo import load_policy, serial_pipeline
from zoo.run.checkpoint.file import save_checkpoint

SMALL = (
    'policy.collect.n_step=16',
    'env.collector_env_num=4',
    'policy.learn.batch_size=64',
    'max_env_step=256',
    'logger.freq=1',
    'policy.eval.eval_freq=1000000',
    'policy.eval.n_episode=2',
)
RUN = Run('cartpole_ppo', SMALL, 4, 200, '500 (rl-zoo3)', 100_000)


def line(env_step: int, wall_s: float, **more: float) -> dict[str, float]:
    counts = {'learn/train_iter': env_step // 10, 'collect/episode': env_step // 5}
    return {'env_step': env_step, 'wall_s': wall_s, **counts} | {f'learn/{name}': x for name, x in more.items()}


def test_thinned_keeps_the_first_and_the_last_point():
    # 4 of the points 0 to 9: 0, 3, 6, 9
    curve = [(step, step / 2) for step in range(10)]
    assert thinned(curve, 4) == [(0, 0.0), (3, 1.5), (6, 3.0), (9, 4.5)]
    assert thinned(curve[:2], 4) == curve[:2]
    assert thinned([], 4) == []


def test_cost_tells_auxiliary_phases_from_usual_rounds():
    # usual rounds took 10, 12 and 90 s (the machine was busy), median 12; that with the auxiliary phase 40 = 12 + 28
    rows = [
        line(100, 10.0),
        {'env_step': 100, 'wall_s': 11.0, 'eval/return_mean': 1.0},
        line(198, 22.0),
        line(300, 62.0, auxiliary_loss=0.5),
        line(400, 152.0),
    ]
    assert cost(rows) == {'env_step': 100.0, 's': 12.0, 'aux_s': 28.0}


def test_cost_of_a_run_that_has_logged_nothing_is_not_known():
    assert cost([]) == {'env_step': None, 's': None, 'aux_s': None}


def test_seconds_for_adds_one_auxiliary_phase_per_aux_freq_rounds():
    known = {'env_step': 100.0, 's': 12.0, 'aux_s': 28.0}
    assert seconds_for(1000, known, None) == pytest.approx(120.0)  # 10 rounds of 12 s
    assert seconds_for(1000, known, 4) == pytest.approx(190.0)  # and 10 / 4 phases of 28 s
    assert seconds_for(1000, {**known, 'aux_s': None}, 4) is None


def test_progress_is_that_of_the_log_or_of_the_checkpoint_whichever_is_further():
    state = {'policy': {}, 'counter': {'env_step': 150, 'episode': 31, 'wall_s': 16.0}}
    checkpoint = pixel_records.Checkpoint(state, {'train_iter': 15}, None)
    evaluation = {'env_step': 100, 'wall_s': 11.0, 'eval/return_mean': 1.0}
    assert progress([], None) == Progress(0, 0, 0, 0.0)
    assert progress([line(100, 10.0), evaluation], checkpoint) == Progress(150, 15, 31, 16.0)
    assert progress([line(100, 10.0), line(200, 20.0)], checkpoint) == Progress(200, 20, 40, 20.0)


def test_read_policy_leaves_the_auxiliary_memory_on_disk(tmp_path):
    path = tmp_path / 'step_000000007.safetensors'
    weight = torch.arange(6.0).reshape(2, 3)
    own = {'policy': {'model': {'a.weight': weight}, 'learn': {'n': 3}}, 'counter': {'env_step': 7}}
    save_checkpoint(path, {**own, 'buffer': {}, 'memory': {'obs': torch.ones(1000)}}, {'train_iter': 2})
    state, meta, _ = read_policy(path)
    assert sorted(state) == ['counter', 'policy'] and meta == {'train_iter': 2}
    assert state['policy']['learn'] == {'n': 3} and state['counter'] == {'env_step': 7}
    torch.testing.assert_close(state['policy']['model']['a.weight'], weight, rtol=0, atol=0)


@pytest.mark.long
def test_run_for_ends_a_command_at_its_limit_and_passes_other_exit_codes_on():
    # like a run that saves on SIGINT; a shell could not catch the signal if the tests themselves ignore it
    waits = 'import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: sys.exit({})); time.sleep(60)'
    assert pixels.run_for([sys.executable, '-c', waits.format(130)], 2.0) == 0
    assert pixels.run_for([sys.executable, '-c', waits.format(3)], 2.0) == 3
    assert pixels.run_for(['sh', '-c', 'exit 1'], None) == 1


def test_is_finished_by_minutes_or_when_no_whole_rollout_is_left(monkeypatch):
    def at(env_step: int, wall_s: float) -> pixel_records.Checkpoint:
        counter = {'env_step': env_step, 'episode': 1, 'wall_s': wall_s}
        config = {'policy': {'collect': {'n_sample': 64}}, 'max_env_step': 256}
        return pixel_records.Checkpoint({'counter': counter}, {'train_iter': 1, 'config': config}, None)

    monkeypatch.setitem(RUNS, 'quick', RUN)
    assert not pixels.is_finished('quick', None)
    assert not pixels.is_finished('quick', at(192, 1e6))
    assert pixels.is_finished('quick', at(193, 1.0))  # 193 + 64 > 256
    monkeypatch.setitem(RUNS, 'quick', RUN._replace(minutes=10))
    assert not pixels.is_finished('quick', at(128, 500.0))
    assert pixels.is_finished('quick', at(128, 571.0))  # 95% of 600 s


@pytest.mark.slow
def test_record_random_on_cartpole_finds_the_known_mean_length():
    # a uniform policy falls after 22.2 steps on average, with a standard deviation of 12: 200 episodes give +- 0.85
    found = record_random({'id': 'CartPole-v1'}, 200)['return']
    assert found['mean'] == pytest.approx(22.2, abs=4 * 0.85)
    assert found['error'] == pytest.approx(0.85, rel=0.3)
    assert len(found['returns']) == 200


@pytest.mark.long
def test_train_continues_with_an_unfinished_folder_and_record_reports_it(tmp_path, monkeypatch):
    monkeypatch.setitem(RUNS, 'quick', RUN)
    monkeypatch.setattr(pixels, 'RAW', tmp_path / 'raw')
    words = [*RUN.overrides, 'exp_name=quick', f'logger.root={tmp_path}']
    part = serial_pipeline(RUN.config, max_train_iter=1, overrides=words)
    pixels.record('quick', tmp_path)
    before = json.loads((tmp_path / 'raw' / 'quick.json').read_text())
    assert pixels.train('quick', tmp_path)
    assert pixels.newest_folder('quick', tmp_path) == part.run_dir
    assert pixels.train('quick', tmp_path)  # finished: nothing is done
    pixels.record('quick', tmp_path)
    after = json.loads((tmp_path / 'raw' / 'quick.json').read_text())
    assert before['env_step'] == before['evaluation']['env_step'] == part.env_step and not before['finished']
    assert 192 < after['env_step'] <= 256 and after['finished']  # a rollout is 64, without the rows that only reset
    assert after['evaluation']['env_step'] == after['env_step']
    assert [origin['versions']['torch'] for origin in after['origin']] == [torch.__version__]
    assert str(tmp_path) not in json.dumps(after)


@pytest.mark.slow
def test_evaluate_last_acts_greedily_as_the_loaded_policy_does(tmp_path):
    result = serial_pipeline(RUN.config, overrides=[*RUN.overrides, f'logger.root={tmp_path}'])
    checkpoint = pixel_records.last_checkpoint(result.run_dir)
    found = pixel_records.evaluate_last(checkpoint, 4)
    env = pixel_records.env_config({'id': 'CartPole-v1', 'evaluator_env_num': 4})
    again = pixel_records.evaluate(load_policy(result.run_dir), env, 4, pixel_records.EVAL_SEED)
    assert found['greedy']['returns'] == again.returns
    assert found['sampled']['returns'] != again.returns


def test_page_says_how_far_a_run_came_and_what_a_longer_one_needs(monkeypatch):
    monkeypatch.setitem(RUNS, 'quick', RUN._replace(published_env_step=36_000, note='a note'))
    mean = {'mean': 2.0, 'error': 0.25, 'returns': [1.0, 3.0]}
    found = {
        'game': 'pole',
        'finished': False,
        'env_step': 2000,
        'train_iter': 20,
        'wall_s': 600.0,
        'cost': {'env_step': 100.0, 's': 10.0, 'aux_s': None},
        'curve': [[200 * i, float(i)] for i in range(1, 11)],
        'evaluation': {'env_step': 1500, 'greedy': mean, 'sampled': {**mean, 'mean': 1.0}},
        'obs_shape': [4],
        'origin': [{'commit': 'abc', 'versions': {'torch': '3'}, 'note': 'beside other work'}],
        'resolved': {'policy': {'learn': {}, 'collect': {'n_sample': 100}}},
    }
    text = page({'quick': found}, {'pole': {'return': {**mean, 'mean': 0.5}}}, ['quick'])
    assert ('| quick | 2,000 | 20 | 10 min | 0.50 +- 0.25 (2) | 10.00 | 1.00 +- 0.25 (2) | 2.00 +- 0.25 (2) |') in text
    assert '| quick | 1.00 | 2.00 | 3.00 | 4.00 | 5.00 | 6.00 | 7.00 | 8.00 | 9.00 | 10.00 |' in text
    # 36,000 env steps at 100 in 10 s
    assert '| quick | 500 (rl-zoo3) | 36,000 | 10 | 60 min | - |' in text
    for note in (
        '`quick`: stopped part-way',
        '`quick`: the last policy is that of 1,500 env steps',
        '`quick`: a note',
        '- commit: abc',
        '- note: beside other work',
        '- trained with an older config: quick',
    ):
        assert note in text
