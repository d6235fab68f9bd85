"""Data-parallel runs: agreement of ranks, here threads, on counters, stops and metrics; starts under torchrun."""

from __future__ import annotations

import logging
import math
import os
import shutil
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import zoo.run.launch as launch_module
from tests.policy_envs import job_config
from tests.thread_ranks import on_ranks
from zoo.config.section import ConfigError
from zoo.core.ranks import ALONE, Ranks
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import steps_of
from zoo.run.config import resolve_config
from zoo.run.data_parallel import Agreement
from zoo.run.launch import FILE, Launch, continued, filter_rank_log, launched
from zoo.worker.evaluator import Evaluation, joined_evaluations
from zoo.worker.infos import InfoTally


def parts(returns: Any = (), lengths: Any = (), infos: dict[str, Any] | None = None) -> Any:
    """Returns the parts of a run that `Agreement` reads."""
    tally = InfoTally()
    tally.values.update(infos or {})
    episodes = SimpleNamespace(n_episode=0, n_reset=0, returns=returns, lengths=lengths, infos=tally)
    collector = SimpleNamespace(env_step=100, episodes=episodes)
    return SimpleNamespace(collector=collector, learners={'': SimpleNamespace(n_sample=0)})


def agreement(ranks: Ranks, own: Any) -> Agreement:
    return Agreement(ranks, own)


def counters(own: Any) -> tuple[int, ...]:
    episodes = own.collector.episodes
    return own.collector.env_step, episodes.n_episode, episodes.n_reset, own.learners[''].n_sample


def test_counters_are_the_sum_of_what_each_rank_added() -> None:
    def work(ranks: Ranks) -> list[tuple[int, ...]]:
        own, found = parts(), []
        own.learners[''].n_sample = 100
        counted = agreement(ranks, own)
        for n_step in (60 + ranks.rank, 64 - ranks.rank):  # 60 and 61, then 64 and 63
            own.collector.env_step += n_step
            own.collector.episodes.n_episode += 2 + ranks.rank
            own.collector.episodes.n_reset += 1
            own.learners[''].n_sample += 32
            counted.count()
            found.append(counters(own))
        return found

    # env steps: 100 of both ranks + 60 + 61 = 221, + 64 + 63 = 348; each time 2 + 3 episodes, 1 + 1 resets, 32 + 32 samples
    assert on_ranks(work) == [[(221, 5, 2, 164), (348, 10, 4, 228)]] * 2


def test_counters_that_a_resume_sets_are_not_counted_twice() -> None:
    def work(ranks: Ranks) -> int:
        own = parts()
        own.collector.env_step = 1000
        counted = agreement(ranks, own)
        own.collector.env_step += 8
        counted.count()
        return int(own.collector.env_step)

    assert on_ranks(work) == [1016] * 2


@pytest.mark.parametrize(
    ('wanted', 'received', 'answer', 'after'),
    [
        ((False, False), ([], []), None, ([], [])),
        ((False, True), ([], []), 0, ([], [])),
        ((False, False), ([], [15]), 15, ([15], [15])),
        ((True, False), ([], [2]), 2, ([2], [2])),
        ((False, False), ([2], [15]), 15, ([2], [15])),
    ],
)
def test_a_signal_or_wish_of_one_rank_stops_all(
    wanted: tuple[bool, ...], received: tuple[list[int], ...], answer: int | None, after: tuple[list[int], ...]
) -> None:
    signals = [list(each) for each in received]

    def work(ranks: Ranks) -> int | None:
        return agreement(ranks, parts()).stops(wanted[ranks.rank], signals[ranks.rank])

    assert on_ranks(work) == [answer] * 2 and signals == list(after)


def test_one_process_agrees_with_itself() -> None:
    alone = agreement(ALONE, parts())
    assert (alone.stops(False, []), alone.stops(True, []), alone.stops(False, [15])) == (None, 0, 15)
    assert alone.first('why') == 'why' and alone.metrics({'loss': 1}) == {'loss': 1}


def test_all_ranks_have_the_first_reason() -> None:
    def work(ranks: Ranks) -> str:
        return agreement(ranks, parts()).first(['', 'enough', 'more'][ranks.rank])

    assert on_ranks(work, 3) == ['enough'] * 3


def test_metrics_are_means_and_extremes_of_the_ranks_that_have_them() -> None:
    given = [
        {'loss': 1.0, 'ratio_max': 3.0, 'reward_min': -1.0},
        {'loss': 4.0, 'ratio_max': 2.0, 'reward_min': -7.0},
        {'mine': 5},
    ]
    found = on_ranks(lambda ranks: agreement(ranks, parts()).metrics(given[ranks.rank]), 3)
    want = {'loss': 2.5, 'ratio_max': 3.0, 'reward_min': -7.0, 'mine': 5.0}
    assert [{name: float(x) for name, x in each.items()} for each in found] == [want] * 3


def test_last_episodes_are_those_of_all_ranks() -> None:
    given = [([1.0, 2.0], [3, 4], {'won': [1.0]}), ([5.0], [6], {'won': [0.0], 'lives': [2.0]})]

    def work(ranks: Ranks) -> tuple[Any, ...]:
        returns, lengths, infos = agreement(ranks, parts(*given[ranks.rank])).episodes()
        return list(returns), list(lengths), {key: list(values) for key, values in infos.values.items()}

    assert on_ranks(work) == [([1.0, 2.0, 5.0], [3, 4, 6], {'won': [1.0, 0.0], 'lives': [2.0]})] * 2


def test_evaluations_are_joined_in_the_order_of_the_ranks() -> None:
    own = [
        Evaluation(
            [1.0, 2.0], [10, 20], [False, True], {'won': [1.0, 0.0]}, {'hard': Evaluation([7.0], [1], [False], {})}
        ),
        Evaluation([3.0], [30], [False], {'lives': [2.0]}, {'hard': Evaluation([8.0], [2], [True], {})}),
    ]
    for found in [
        joined_evaluations(own),
        *on_ranks(lambda ranks: joined_evaluations(ranks.gather(own[ranks.rank]))),
    ]:
        assert (list(found.returns), list(found.lengths), list(found.cut)) == (
            [1, 2, 3],
            [10, 20, 30],
            [False, True, False],
        )
        assert found.return_mean == 2.0
        assert list(found.sets['hard'].returns) == [7, 8] and list(found.sets['hard'].cut) == [False, True]
        assert found.infos['won'][:2] == [1.0, 0.0] and math.isnan(found.infos['won'][2])
        assert [math.isnan(x) for x in found.infos['lives']] == [True, True, False]


def test_log_of_another_rank_has_its_warnings_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    log, keep = logging.getLogger('tests.of_rank'), partial(filter_rank_log, 3)
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(keep)
    caplog.handler.addFilter(keep)  # as for a second handler, which sees the same record
    try:
        log.info('not this')
        log.warning('%d of these', 2)
    finally:
        caplog.handler.removeFilter(keep)
    assert caplog.messages == ['rank 3: 2 of these']


# --- starts under torchrun ---


def _steps(folder: Path) -> list[int]:
    return list(steps_of(folder / 'checkpoints'))


@pytest.mark.slow
def test_run_dir_whose_newest_checkpoint_is_damaged_continues_from_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / 'run'
    serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64)), run_dir=folder)
    newest = steps_of(folder / 'checkpoints')[256]
    newest.write_bytes(newest.read_bytes()[:-1])
    with caplog.at_level('INFO', 'zoo'):
        result = serial_pipeline(job_config(tmp_path, max_env_step=320), run_dir=folder)
    assert result.env_step == 320 and _steps(folder)[-1] == 320
    assert 'resuming at env step 192' in caplog.text


def test_restart_finds_the_folder_of_its_own_start(tmp_path: Path, finished: Path) -> None:
    other = shutil.copytree(finished, finished.with_name(f'{finished.name}_2'))
    for folder, name in ((finished, 'mine'), (other, 'of another start')):
        (folder / FILE).write_text(name + '\n')
    cfg = resolve_config(job_config(tmp_path))
    folder, checkpoint = continued(Launch(ALONE, 'mine', 1), cfg, None)
    assert folder is not None and folder.resolve() == finished.resolve()
    assert checkpoint is not None and checkpoint.meta['env_step'] == 256
    assert continued(Launch(ALONE, 'mine', 0), cfg, None) == (None, None)  # not a restart
    assert continued(Launch(ALONE, 'a third', 1), cfg, None) == (None, None)


def test_one_process_under_torchrun_is_alone(tmp_path: Path) -> None:
    environ = {'WORLD_SIZE': '1', 'TORCHELASTIC_RUN_ID': 'name', 'TORCHELASTIC_RESTART_COUNT': '2'}
    cfg = resolve_config(job_config(tmp_path))
    with launched(cfg, environ) as launch:
        assert launch.ranks is ALONE and launch.n_restart == 2
        assert launch.id.startswith('name')
    with launched(cfg, {}) as launch:
        assert launch == (ALONE, '', 0)


def test_runs_of_one_script_have_numbers_by_which_each_finds_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, cfg = {'TORCHELASTIC_RUN_ID': 'name'}, resolve_config(job_config(tmp_path))

    def ids() -> list[str]:
        monkeypatch.setattr(launch_module, '_runs', count(1))  # as in a new process
        found = []
        for _ in range(2):
            with launched(cfg, environ) as launch:
                found.append(launch.id)
        return found

    assert ids() == ids() == ['name 1', 'name 2']


def test_uneven_split_is_refused_before_the_ranks_meet(tmp_path: Path) -> None:
    cfg = resolve_config(job_config(tmp_path))
    with pytest.raises(ConfigError, match='env.collector_env_num is 4 but there are 3 ranks: 4 % 3 = 1'):
        with launched(cfg, {'WORLD_SIZE': '3', 'RANK': '0'}):
            pass
    assert not torch.distributed.is_initialized()


def test_run_folder_notes_its_start_only_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (serial_pipeline(job_config(tmp_path)).run_dir / FILE).exists()
    monkeypatch.setitem(os.environ, 'TORCHELASTIC_RUN_ID', 'name')
    assert (serial_pipeline(job_config(tmp_path)).run_dir / FILE).read_text().startswith('name')
