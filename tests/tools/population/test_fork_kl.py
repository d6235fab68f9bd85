"""The KL divergence of a child from its parent, in the run folder of the child."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.tools.population.members import TrainedMember, config, trained
from zoo import load_policy, serial_pipeline
from zoo.run.checkpoint import State
from zoo.run.fork import fork
from zoo.tools.population.fork_kl import NAME, ForkKL, written_kl
from zoo.tools.population.growth import Growth, grown
from zoo.tools.population.noise import noisy


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
    (tmp_path / NAME).write_text(text)
    assert written_kl(tmp_path) is None
