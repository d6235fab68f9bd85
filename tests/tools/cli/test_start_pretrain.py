"""`zoo pretrain`, between `zoo eval -o demos.npz` and `zoo train init_from=...`: its commands and its output."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.real_runs import SHORT
from tests.tools.cli.commands import Zoo
from zoo.core.registry import ENV_REGISTRY
from zoo.run.checkpoint import consent
from zoo.tools.cli.command import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('in_tmp')]
QUIET = ['logger.console=off', 'logger.tensorboard=false', '-q']


@pytest.fixture(scope='module')
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of a policy that was trained a little."""
    folder = tmp_path_factory.mktemp('expert')
    assert main(['train', 'cartpole_ppo', *SHORT, '--run-dir', str(folder / 'expert'), *QUIET]) == 0
    assert main(['eval', str(folder / 'expert'), '-o', str(folder / 'demos.npz'), '--episodes', '3', '-q']) == 0
    return folder / 'demos.npz'


@pytest.mark.long
def test_what_eval_writes_are_the_steps_of_its_episodes(demos: Path, zoo: Zoo) -> None:
    run = demos.parent / 'expert'
    shown = zoo('eval -o again.npz --episodes 3 --json -q', run).data
    with np.load(demos) as one, np.load('again.npz') as other:
        assert sorted(one) == ['action', 'episode_ends', 'obs', 'reward', 'terminated']
        assert all((one[name] == other[name]).all() for name in one)  # same seed, same steps
        assert shown['steps'] == len(one['obs']) == one['episode_ends'][-1] == one['reward'].sum()
        assert shown['return_mean'] == pytest.approx(len(one['obs']) / 3)
    err = zoo('eval -o cut.npz --max-step 5 -q', run, code=2).err
    assert 'demonstrations are whole episodes; set env.max_episode_steps=N' in err and not Path('cut.npz').exists()


@pytest.mark.long
def test_command_that_it_prints_trains_on(demos: Path, zoo: Zoo) -> None:
    words = 'pretrain cartpole_ppo policy.model.obs_norm=true --epochs 2 -q --run-dir "my start" --demos'
    *_, evaluate, train = zoo(words, demos).lines
    zoo(evaluate.partition('zoo ')[2], '--episodes', 1, '-q')
    more = shlex.split(train.partition('zoo ')[2])
    assert more[:3] == ['train', 'cartpole_ppo', 'policy.model.obs_norm=true'] and 'my start' in more[-1]
    said = zoo(train.partition('zoo ')[2], *SHORT, *QUIET, '--run-dir', 'after')
    assert 'env steps in' in said.out and 'do not fit' not in said.err


@pytest.mark.long
def test_commands_that_it_prints_import_what_it_was_given_to_import(
    demos: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, zoo: Zoo
) -> None:
    """Without the import, the printed commands do not know the env that a file registers."""
    (in_tmp / 'my poles.py').write_text(
        'import gymnasium\nfrom zoo.core.registry import ENV_REGISTRY\n'
        "ENV_REGISTRY.register('my_pole')(lambda: gymnasium.make('CartPole-v1'))\n"
    )
    monkeypatch.setattr(consent, 'given_imports', [])
    monkeypatch.setattr(ENV_REGISTRY, 'entries', dict(ENV_REGISTRY.entries))
    *_, evaluate, train = zoo('pretrain --env my_pole --import "my poles.py" --epochs 1 -q --demos', demos).lines
    given = [shlex.split(line.partition('zoo ')[2]) for line in (evaluate, train)]
    for words in given:  # other tests of this process have imported more
        files = {Path(name).resolve() for option, name in pairwise(words) if option == '--import'}
        assert (in_tmp / 'my poles.py').resolve() in files


def test_numbers_as_json(demos: Path, zoo: Zoo) -> None:
    found = zoo('pretrain --env CartPole-v1 --epochs 2 --run-dir a --json -q --demos', demos).data
    assert found['epoch'] == 2 and found['loss'] < 0.7 and 0 <= found['agreement'] <= 1
    assert Path(found['run_dir']) == Path('a').absolute()
