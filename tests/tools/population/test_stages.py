"""Training of members for one generation: ends on the disk, failures, processes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.tools.population.members import TrainedMember, config, trained
from tests.tools.population.small import LR, SPACES, small
from zoo import load_policy, serial_pipeline
from zoo.core.processes import Interrupted
from zoo.run.checkpoint import State, save_checkpoint
from zoo.run.fork import fork
from zoo.tools.population.evolution import evolve
from zoo.tools.population.growth import Growth, grown
from zoo.tools.population.members import Stage, undo_stage
from zoo.tools.population.noise import noisy
from zoo.tools.population.stages import (
    KL_FILE,
    ForkKL,
    StageEnd,
    StageLog,
    StageTask,
    end_on_disk,
    train_stages,
    written_kl,
)


def ended_stage(folder: Path, **result: Any) -> Stage:
    """A stage from env step 64, of which the disk has a checkpoint at 128, and result.json with other values."""
    (folder / 'checkpoints').mkdir(parents=True)
    save_checkpoint(folder / 'checkpoints' / 'step_000000128.safetensors', {}, {})
    known = {'state': 'done', 'env_step': 128, 'last_return': 9.5, 'stop_reason': ''}
    (folder / 'result.json').write_text(json.dumps(known | result))
    return Stage('m00_g00', folder, (), 64)


@pytest.mark.parametrize(
    ('result', 'end'),
    [
        ({}, StageEnd(128, 9.5)),
        ({'last_return': float('nan')}, StageEnd(128, None)),
        ({'last_return': float('inf')}, StageEnd(128, None)),
        ({'last_return': None}, StageEnd(128, None)),
        ({'state': 'running'}, None),  # killed
        ({'state': 'failed'}, None),
        ({'env_step': 64}, None),  # killed between the checkpoint and the result
    ],
)
def test_end_of_a_stage_is_read_if_it_is_complete(result: dict[str, Any], end: StageEnd | None, tmp_path: Path) -> None:
    assert end_on_disk(ended_stage(tmp_path / 'run', **result)) == end


def test_stage_without_a_result_is_not_complete(tmp_path: Path) -> None:
    stage = ended_stage(tmp_path / 'run')
    (stage.folder / 'result.json').write_text('{')
    assert end_on_disk(stage) is None
    (stage.folder / 'result.json').unlink()
    assert end_on_disk(stage) is None


def test_stage_whose_checkpoint_a_power_cut_has_damaged_is_not_complete(tmp_path: Path) -> None:
    stage = ended_stage(tmp_path / 'run')
    (stage.folder / 'checkpoints' / 'step_000000128.safetensors').write_bytes(b'')
    assert end_on_disk(stage) is None


def test_stage_begins_again_without_what_an_interrupted_one_has_left(tmp_path: Path) -> None:
    stage = ended_stage(tmp_path / 'run')
    (stage.folder / 'config.yaml').write_bytes(b'')  # as after a power cut
    undo_stage(stage.folder, stage.env_step)
    assert os.listdir(stage.folder / 'checkpoints') == [] and not (stage.folder / 'config.yaml').exists()
    (stage.folder / 'config.yaml').write_text('seed: 1')
    undo_stage(stage.folder, stage.env_step)
    assert (stage.folder / 'config.yaml').read_text() == 'seed: 1'


def test_signal_before_a_stage_begins_no_other(tmp_path: Path) -> None:
    stage = Stage('m00_g00', tmp_path / 'run', (), 0)
    with pytest.raises(Interrupted):
        train_stages([StageTask(small(tmp_path), stage, ())], 1, None, [2], StageLog())
    assert not stage.folder.exists()


def test_warning_of_members_is_said_once_and_others_always(caplog: pytest.LogCaptureFixture) -> None:
    log = StageLog()
    for _ in range(2):
        with log.on():
            logging.getLogger('zoo.run.build').warning('of a member')
            logging.getLogger('zoo.run.build').info('of a member, for information')
            logging.getLogger('zoo.tools.population.evolution').warning('of the population')
    logging.getLogger('zoo.run.build').warning('of a member')  # after the population
    assert caplog.messages == ['of a member', 'of the population', 'of the population', 'of a member']


@pytest.mark.long
def test_member_whose_checkpoint_is_gone_fails_and_does_not_begin_again(tmp_path: Path) -> None:
    select = 'threshold:1000'  # nobody is replaced
    population = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=1, select=select)
    best = population.best
    assert best is not None
    for path in best.run_dir.glob('checkpoints/step_*'):
        path.unlink()
    (best.run_dir / 'result.json').unlink()
    lineage = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2, select=select).lineage
    result = lineage.generations[1][best.place]
    assert result.state == 'failed' and f'has no checkpoint of env step {best.env_step} any more' in result.reason


class Crash:
    """A callback of runs that ends the process of one member of two without a word."""

    def on_update(self, job: Any, metrics: Any) -> None:
        if job.run_dir.name == 'm01_g00':
            os._exit(9)


@pytest.mark.long
def test_member_whose_process_ends_fails_alone_and_is_replaced(tmp_path: Path) -> None:
    config = small(tmp_path, callbacks=['tests.tools.population.test_stages:Crash'])
    lineage = evolve(config, [*SPACES], pop=4, every=64, generations=2, jobs=2).lineage
    first, second = lineage.generations
    assert [result.state for result in first] == ['done', 'failed', 'done', 'done']
    assert first[1].reason == 'its process ended with exit code 9' and second[1].life == 'm01_g01'
    assert LR in lineage.lives['m01_g01'].values and all(result.fitness is not None for result in second)


@pytest.fixture(scope='module')
def member() -> Iterator[TrainedMember]:
    with TemporaryDirectory() as path:
        yield trained(config(Path(path), {'type': 'ppo', 'model': {'activation': 'relu'}}))


def child_kl(member: TrainedMember, folder: Path, change: Callable[[State], State] | None, texts: list[str]) -> float:
    """Forks the member, trains the child for two rollouts, and reads its file."""
    parent = member.checkpoint.path
    fork(parent, folder, [*texts, 'max_env_step=1024', 'seed=5'], change=change)
    serial_pipeline(None, run_dir=folder, callbacks=[ForkKL(parent)])
    kl = written_kl(folder)
    assert kl is not None
    return kl


def test_unchanged_and_wider_children_have_no_divergence(member: TrainedMember, tmp_path: Path) -> None:
    assert child_kl(member, tmp_path / 'same', None, []) == 0
    growth = Growth('wider', 0, (64, 64), (96, 64))

    def change(state: State) -> State:
        cfg = member.resolve(growth.overrides)
        return grown(state, growth=growth, checkpoint=member.checkpoint, parent=member.config, child=cfg, seed=1)

    assert child_kl(member, tmp_path / 'wider', change, list(growth.overrides)) == pytest.approx(0, abs=1e-6)


def test_divergence_is_that_of_the_two_distributions(member: TrainedMember, tmp_path: Path) -> None:
    def certain(state: State) -> State:
        """Adds 3 to the logit of the first action."""
        model = dict(state['policy']['model'])
        model['policy_head.bias'] = model['policy_head.bias'] + torch.tensor([3.0, 0.0])
        return {**state, 'policy': {**state['policy'], 'model': model}}

    # the parent is nearly uniform: sum_a 1/2 log(1/2 / q_a) with q = (e^3, 1) / (e^3 + 1) is
    # -log 2 - 1/2 log(.9526) - 1/2 log(.0474) = .8556
    assert child_kl(member, tmp_path / 'certain', certain, []) == pytest.approx(0.856, abs=0.1)


def test_noise_has_a_small_divergence_and_it_is_of_the_parent(member: TrainedMember, tmp_path: Path) -> None:
    def change(state: State) -> State:
        return noisy(state, checkpoint=member.checkpoint, parent=member.config, seed=2)

    assert 0 < child_kl(member, tmp_path / 'noisy', change, []) < 0.1
    assert load_policy(member.checkpoint.path) is not None


@pytest.mark.parametrize('text', ['', '{', '[]', '{"kl": NaN}', '{"kl": null}', '{"k": 1}'])
def test_file_without_a_number_gives_none(text: str, tmp_path: Path) -> None:
    assert written_kl(tmp_path) is None
    (tmp_path / KL_FILE).write_text(text)
    assert written_kl(tmp_path) is None
