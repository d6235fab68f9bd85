"""Demonstrations: recording, writing, reading, and the files that are refused."""

from __future__ import annotations

import importlib.util
import io
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from zoo import evaluate, make_policy
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.spaces import obs_to_tensor
from zoo.env import make_vector_env
from zoo.env.toy.targets import ACTION_SPACES, AnySpace
from zoo.tools.imitation.demonstrations import read_demonstrations, record_demonstrations, save_demonstrations


@pytest.fixture(scope='module')
def cartpole() -> Any:
    return make_policy('cartpole_ppo')


def arrays(n: int = 6, **more: Any) -> dict[str, Any]:
    given = {'obs': np.zeros((n, 4), np.float32), 'action': np.zeros(n, np.int64), 'episode_ends': np.array([2, n])}
    return {name: value for name, value in {**given, **more}.items() if value is not None}


def write(path: Path, **found: Any) -> str:
    np.savez(path, **found)
    return str(path)


@pytest.mark.slow
def test_recorded_episodes_are_those_of_evaluate(cartpole: Any, tmp_path: Path) -> None:
    demos, evaluation = record_demonstrations(cartpole, 'CartPole-v1', 5, seed=3)
    alone = evaluate(cartpole, {'id': 'CartPole-v1', 'evaluator_env_num': 1}, 5, seed=3)
    assert list(evaluation.returns) == list(alone.returns)
    lengths = np.diff(demos.episode_ends, prepend=0)
    assert lengths.tolist() == list(alone.lengths) and demos.n_step == sum(alone.lengths)
    assert demos.reward is not None and demos.reward.sum() == sum(alone.returns)
    assert demos.terminated is not None and demos.terminated.all()  # a new policy does not reach the time limit
    acted = cartpole.act(demos.obs.numpy())
    assert (acted == demos.action['']).all()


def test_steps_follow_each_other_in_the_env(cartpole: Any) -> None:
    """Oracle: CartPole, set to each recorded observation, reaches the next one by the recorded action."""
    demos, _ = record_demonstrations(cartpole, 'CartPole-v1', 2, seed=1)
    env: Any = gymnasium.make('CartPole-v1').unwrapped
    env.reset(seed=0)
    for episode in demos.episodes():
        for t in range(episode.start, episode.stop - 1):
            env.state, env.steps_beyond_terminated = demos.obs[t].numpy().astype(np.float64), None
            reached = env.step(int(demos.action[''][t]))[0]
            np.testing.assert_allclose(reached, demos.obs[t + 1].numpy(), rtol=1e-5, atol=1e-6)


def test_file_gives_back_what_was_written(cartpole: Any, tmp_path: Path) -> None:
    demos, _ = record_demonstrations(cartpole, 'CartPole-v1', 3)
    save_demonstrations(tmp_path / 'a.npz', demos)
    again = read_demonstrations(str(tmp_path / 'a.npz'), cartpole)
    assert torch.equal(again.obs, demos.obs) and (again.action[''] == demos.action['']).all()
    assert (again.episode_ends == demos.episode_ends).all() and (again.reward == demos.reward).all()
    assert (again.terminated == demos.terminated).all()


@pytest.mark.parametrize('kind', [bool, np.int64, np.uint8, np.float32, np.float64])
def test_flags_and_counts_may_be_numbers_of_any_type(kind: Any, cartpole: Any, tmp_path: Path) -> None:
    ends = np.array([2, 6]).astype(np.int64 if kind is bool else kind)
    path = write(tmp_path / 'a.npz', **arrays(episode_ends=ends, terminated=np.array([0, 1], kind)))
    found: Any = read_demonstrations(path, cartpole)
    assert found.episode_ends.dtype == np.int64 and found.episode_ends.tolist() == [2, 6]
    assert found.terminated.dtype == bool and found.terminated.tolist() == [False, True]


@pytest.mark.parametrize(
    'mode, distribution',
    [('clip', 'gaussian'), ('clip', 'squashed_gaussian'), ('clip', 'beta'), ('rescale', 'gaussian')],
)
def test_actions_of_the_env_become_those_of_the_policy_and_back(mode: str, distribution: str, tmp_path: Path) -> None:
    words = [f'env.action_mode={mode}', f'policy.model.distribution={distribution}', 'policy.learn.executor=eager']
    policy = make_policy('pendulum_ppo', words)
    low_high = np.array([[-2.0], [-1.5], [0.0], [0.3], [1.9], [2.0]], np.float32)
    path = write(tmp_path / 'a.npz', **arrays(obs=np.zeros((6, 3), np.float32), action=low_high))
    action = read_demonstrations(path, policy).policy_action(policy)
    np.testing.assert_allclose(policy.env_action(action), low_high, atol=5e-4)  # squashed actions stay off the bounds
    assert policy.dist.log_prob(policy.distribution(np.zeros((6, 3), np.float32)).param, action).isfinite().all()


@pytest.mark.many
@pytest.mark.parametrize('obs, action', [('box', 'tuple'), *(('nested_mask', name) for name in ACTION_SPACES)])
def test_any_space_is_written_and_read_back(obs: str, action: str, tmp_path: Path) -> None:
    env = {'id': 'any_space', 'kwargs': {'obs': obs, 'action': action}}
    policy = make_policy({'env': env})
    demos, _ = record_demonstrations(policy, env, 2)
    save_demonstrations(tmp_path / 'a.npz', demos)
    again = read_demonstrations(str(tmp_path / 'a.npz'), policy)
    assert torch.equal(again.policy_action(policy), demos.policy_action(policy))
    assert_replayed(policy, again.policy_action(policy), again.action, 1e-6)


class SmallIntegers(gymnasium.Env):
    """Takes int16 actions of 3 choices, and ends after 4 steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.MultiDiscrete([3, 3], dtype=np.int16)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 4, False, {}


def test_recorded_actions_have_the_number_type_of_the_env(tmp_path: Path) -> None:
    policy = make_policy({'env': {'id': SmallIntegers}})
    demos, _ = record_demonstrations(policy, {'id': SmallIntegers}, 2)
    save_demonstrations(tmp_path / 'a.npz', demos)
    assert np.load(tmp_path / 'a.npz')['action'].dtype == np.int16
    assert read_demonstrations(str(tmp_path / 'a.npz'), policy).policy_action(policy).dtype == torch.int64


class Counted(gymnasium.Env):
    """Observations of a space, drawn from it; episodes of 6 steps. Class attribute episodes: what the env gave."""

    episodes: ClassVar[list[list[Any]]] = []
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, obs: gymnasium.Space) -> None:
        self.observation_space = obs

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        self.episodes.append([])
        return self.draw(), {}

    def draw(self) -> Any:
        obs = self.observation_space.sample()
        self.episodes[-1].append(obs)
        return obs

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.draw(), 1.0, self.t == 6, False, {}


BIG = spaces.Box(0, 2e9, (2,), np.float64)
OWN_FORMS = {
    'discrete': lambda: spaces.Discrete(5, start=2),
    'multi': lambda: spaces.MultiDiscrete([3, 4], start=[1, 7]),
    'multi_2d': lambda: spaces.MultiDiscrete([[3], [4]], start=[[-1], [2]]),
    'float64': lambda: BIG,
    'int64': lambda: spaces.Box(0, 2**40, (2,), np.int64),
    'dict': lambda: spaces.Dict(
        n=spaces.Discrete(3, start=-4), m=spaces.Tuple((spaces.MultiDiscrete([4], start=[2]), BIG))
    ),
    'tuple': lambda: spaces.Tuple((spaces.Discrete(4, start=9), spaces.MultiBinary(3))),
    'dotted': lambda: spaces.Dict(
        {'a.b': spaces.Discrete(9, start=1), 'a': spaces.Dict({'b': BIG, 'c/d': BIG}), '': BIG}
    ),
}


@pytest.mark.many
@pytest.mark.parametrize('kind', list(OWN_FORMS))
@pytest.mark.parametrize('how', ['same_step', 'next_step', 'disabled'])
def test_recorded_observations_are_those_that_the_env_gave(kind: str, how: str, tmp_path: Path) -> None:
    """Oracle: the list that the env keeps of its own observations."""
    env = {'id': lambda: Counted(OWN_FORMS[kind]()), 'autoreset': how, 'check': False}
    policy = make_policy({'env': env})
    Counted.episodes.clear()
    demos, _ = record_demonstrations(policy, env, 2)
    whole = [episode for episode in Counted.episodes if len(episode) == 7][:2]  # some resets only look for masks
    acted = [obs for episode in whole for obs in episode[:-1]]  # nothing acts on the last observation
    save_demonstrations(tmp_path / 'a.npz', demos)
    with np.load(tmp_path / 'a.npz') as file:
        found = {name.partition('/')[2]: file[name] for name in file.files if name.startswith('obs')}
    wanted = [dict(leaves(named(obs))) for obs in acted]
    assert found.keys() == wanted[0].keys()
    for name, column in found.items():
        want = np.stack([row[name] for row in wanted])
        assert column.dtype == want.dtype and np.array_equal(column, want)
    again = read_demonstrations(str(tmp_path / 'a.npz'), policy)
    for (_, one), (_, other) in zip(leaves(again.obs), leaves(demos.obs), strict=True):
        assert torch.equal(one, other)
    save_demonstrations(tmp_path / 'b.npz', again)  # a file that was read is written as it was
    with np.load(tmp_path / 'b.npz') as file:
        assert all(np.array_equal(file['obs/' + name if name else 'obs'], column) for name, column in found.items())


def named(obs: Any) -> Any:
    """An observation with the parts of tuples under the names '0', '1', .."""
    if isinstance(obs, tuple):
        obs = {str(i): part for i, part in enumerate(obs)}
    return {name: named(part) for name, part in obs.items()} if isinstance(obs, dict) else np.asarray(obs)


def test_vector_env_of_the_caller_is_as_before_after_a_recording() -> None:
    vector = make_vector_env({'id': 'CartPole-v1', 'vectorization': 'sync'}, 1)
    reader = vector.reader
    record_demonstrations(make_policy('cartpole_ppo'), vector, 1)
    assert vector.reader is reader
    vector.close()


def test_recorded_previous_actions_are_those_of_the_env(tmp_path: Path) -> None:
    env = {'id': lambda: Counted(spaces.Discrete(5, start=2)), 'prev_action': True, 'check': False}
    demos, _ = record_demonstrations(make_policy({'env': env}), env, 1)
    save_demonstrations(tmp_path / 'a.npz', demos)
    with np.load(tmp_path / 'a.npz') as file:
        actions, previous = file['action'], file['obs/prev_action']
    # actions are 5, 6, 7, and 5 is the first of the space, which stands where an episode begins
    assert previous.tolist() == [5, *actions[:-1].tolist()] and actions.min() >= 5


def assert_replayed(policy: Any, param: torch.Tensor, actions: Any, atol: float) -> None:
    """Asserts that a policy's actions, as the env takes them, are these."""
    for one, other in zip(_rows(policy.env_action(param)), _rows(actions), strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


@pytest.mark.parametrize('distribution', ['beta', 'squashed_gaussian'])
def test_numbers_in_a_dict_of_actions_become_those_of_a_bounded_distribution(distribution: str, tmp_path: Path) -> None:
    env = {'id': 'any_space', 'kwargs': {'obs': 'box', 'action': 'dict'}}
    policy = make_policy({'env': env, 'policy': {'model': {'distribution': distribution}}})
    demos, _ = record_demonstrations(policy, env, 2, deterministic=False)
    assert_replayed(policy, demos.policy_action(policy), demos.action, 2e-3)  # squashed actions stay off the bounds


def _rows(action: Any) -> Any:
    if isinstance(action, dict):
        action = tuple(action.values())
    if isinstance(action, tuple):
        for part in action:
            yield from _rows(part)
    else:
        yield action


@pytest.mark.parametrize(
    'change, words',
    [
        ({'obs': np.zeros((6, 3), np.float32)}, 'observations that are not of this env'),
        ({'action': np.full(6, 2)}, 'has action 2, outside of the action space'),
        ({'action': np.zeros((6, 2), np.int64)}, r'has action of shape \[6, 2\] but 6 observations'),
        ({'action': np.zeros(6)}, 'of type float64'),
        ({'action': None}, 'has no action;'),
        ({'episode_ends': np.array([6, 2])}, 'must rise'),
        ({'episode_ends': np.array([2, 5])}, 'must rise'),
        ({'episode_ends': np.array([2.5, 6.0])}, 'episode_ends 2.5 but each must be an integer'),
        ({'episode_ends': np.array([2.0, np.nan])}, 'episode_ends nan but each'),
        ({'episode_ends': np.array([2.0, np.inf])}, 'episode_ends inf but each'),
        ({'episode_ends': np.array(['2', '6'])}, 'episode_ends of type <U1 but each'),
        ({'episode_ends': np.array([False, True])}, 'episode_ends False but each must be an integer'),
        ({'terminated': np.array([0.5, 1.0])}, 'terminated 0.5 but each must be true or false'),
        ({'terminated': np.array([0, 2])}, 'terminated 2 but each'),
        ({'terminated': np.array([np.nan, 1.0])}, 'terminated nan but each'),
        ({'terminated': np.array(['yes', 'no'])}, 'terminated of type <U3 but each'),
        ({'reward': np.array(['1'] * 6)}, 'reward of type <U1'),
        ({'reward': np.full(6, np.nan)}, '6 finite numbers'),
        ({'rewards': np.zeros(6)}, 'has rewards, which is not known'),
        ({'obs': np.zeros((6, 4), np.complex64)}, 'has obs of type complex64, but observations are numbers'),
        ({'obs': np.full((6, 4), '1')}, 'has obs of type <U1, but observations are numbers'),
        ({'obs': np.full((6, 4), np.nan)}, r'observation [^\n]{10,60} is not finite'),
        ({'obs\x1b[2J': np.zeros(6)}, r'has obs\\x1b\[2J, which is not known'),
        ({'obs': None, 'obs/a': np.zeros((6, 4))}, 'observations with leaves'),
    ],
)
def test_demonstrations_of_another_space_are_refused(
    change: dict[str, Any], words: str, cartpole: Any, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        read_demonstrations(write(tmp_path / 'a.npz', **arrays(**change)), cartpole)


def test_files_that_are_none_are_refused(cartpole: Any, tmp_path: Path) -> None:
    (tmp_path / 'a.npz').write_text('no arrays')
    with pytest.raises(UserError, match='no file of arrays'):
        read_demonstrations(str(tmp_path / 'a.npz'), cartpole)
    with pytest.raises(UserError, match='cannot be read'):
        read_demonstrations(str(tmp_path / 'b.npz'), cartpole)
    np.savez(tmp_path / 'c.npz', **arrays(obs=np.array([{}] * 6, dtype=object)))
    with pytest.raises(UserError, match='without pickles'):
        read_demonstrations(str(tmp_path / 'c.npz'), cartpole)


@pytest.mark.parametrize('is_said', [True, False])
def test_file_that_claims_more_memory_than_there_is_is_refused_before_it_is_read(
    is_said: bool, cartpole: Any, tmp_path: Path
) -> None:
    """The array's header claims 512 TB; is_said: the table of the archive claims as much."""
    head = io.BytesIO()
    np.lib.format.write_array_header_2_0(head, {'descr': '<f4', 'fortran_order': False, 'shape': (2**45, 4)})
    with zipfile.ZipFile(tmp_path / 'a.npz', 'w', zipfile.ZIP_DEFLATED) as file:
        file.writestr('obs.npy', head.getvalue() + bytes(600_000))
        if is_said:
            file.filelist[0].file_size = 2**49
    with pytest.raises(UserError, match='a.npz claims more memory than this machine has'):
        read_demonstrations(str(tmp_path / 'a.npz'), cartpole)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a dataset of minari: episodes of (observations, actions), of which those at odd places end by a time limit."""
    minari = pytest.importorskip('minari', exc_type=ImportError)
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv('MINARI_DATASETS_PATH', str(tmp_path))
    about = dict.fromkeys(('algorithm_name', 'author', 'author_email', 'code_permalink', 'description'), 'x')

    def make(name: str, episodes: list[tuple[Any, Any]], lengths: list[int], **options: Any) -> None:
        buffers = []
        for i, ((obs, action), n) in enumerate(zip(episodes, lengths, strict=True)):
            ends = [False] * (n - 1) + [i % 2 == 0], [False] * (n - 1) + [i % 2 == 1]
            buffers.append(EpisodeBuffer(i, 0, None, obs, action, [1.0] * n, *ends, None))
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            minari.create_dataset_from_buffers(name, buffer=buffers, **options, **about)

    return make


@pytest.mark.slow
def test_dataset_of_minari_is_read_by_its_id(cartpole: Any, dataset: Any) -> None:
    lengths = [3, 5]
    episodes = [(np.full((n + 1, 4), i, np.float32), np.arange(n) % 2) for i, n in enumerate(lengths)]
    dataset('zoo/test-v0', episodes, lengths, env='CartPole-v1')
    demos = read_demonstrations('zoo/test-v0', cartpole)
    assert np.diff(demos.episode_ends, prepend=0).tolist() == lengths
    assert demos.action[''].tolist() == [k % 2 for n in lengths for k in range(n)]
    assert demos.reward is not None and demos.reward.sum() == sum(lengths)
    assert demos.terminated is not None and demos.terminated.tolist() == [True, False]
    assert demos.obs[:, 0].tolist() == [0.0] * 3 + [1.0] * 5  # the observation after the last action is left out
    with pytest.raises(UserError, match=r"'zoo/tset-v0' is neither a file nor a dataset .* there are: zoo/test-v0"):
        read_demonstrations('zoo/tset-v0', cartpole)


PICTURE = spaces.Box(0, 255, (32, 40, 3), np.uint8)


def records(space: gymnasium.Space) -> list[tuple[Any, Any]]:
    space.seed(0)
    return [(stacked([space.sample() for _ in range(4)]), np.zeros(3, np.int64))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('space', 'options', 'said'),
    [
        (PICTURE, {}, 'keeps the observations as JPEG'),
        (spaces.Dict(eye=PICTURE, n=spaces.Discrete(2)), {}, "keeps the observations 'eye' as JPEG"),
        (PICTURE, {'jpeg_encoding': False}, None),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), {}, None),
    ],
)
def test_images_that_minari_keeps_with_loss_are_named(
    space: Any, options: Any, said: str | None, dataset: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Env(Counted):
        action_space = spaces.Discrete(2)

    policy = make_policy({'env': {'id': lambda: Env(space)}, 'policy': {'model': {'encoder': 'flat'}}})
    own = {'observation_space': space, 'action_space': spaces.Discrete(2)}
    dataset('zoo/eye-v0', records(space), [3], **own, **options)
    demos = read_demonstrations('zoo/eye-v0', policy)
    is_equal = all(
        np.array_equal(x, y[:3]) for (_, x), (_, y) in zip(leaves(demos.obs), leaves(records(space)[0][0]), strict=True)
    )
    assert is_equal == (said is None)  # the warning is true
    assert ('JPEG' in caplog.text) == (said is not None) and (said or '') in caplog.text


@pytest.mark.slow
def test_dataset_whose_form_needs_another_package_names_it(
    cartpole: Any, dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is missing as in an installation without it: Python refuses its import."""
    dataset('zoo/arrow-v0', [(np.zeros((4, 4), np.float32), np.zeros(3, np.int64))], [3], env='CartPole-v1')
    metadata = tmp_path / 'zoo/arrow-v0/data/metadata.json'
    metadata.write_text(metadata.read_text().replace('"hdf5"', '"arrow"'))
    for name in [name for name in sys.modules if name.split('.')[0] == 'pyarrow']:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    with pytest.raises(UserError, match=r"the dataset 'zoo/arrow-v0' of Minari cannot be read \(.*minari\[arrow\]"):
        read_demonstrations('zoo/arrow-v0', cartpole)


@pytest.mark.slow
def test_dataset_that_is_broken_is_told_apart_from_one_that_is_missing(
    cartpole: Any, dataset: Any, tmp_path: Path
) -> None:
    dataset('zoo/test-v0', [(np.zeros((4, 4), np.float32), np.zeros(3, np.int64))], [3], env='CartPole-v1')
    (tmp_path / 'zoo/test-v0/data/main_data.hdf5').write_bytes(b'nothing')
    with pytest.raises(UserError, match=r"the dataset 'zoo/test-v0' of Minari cannot be read"):
        read_demonstrations('zoo/test-v0', cartpole)


def test_files_that_were_cut_off_or_changed_are_refused(cartpole: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / 'a.npz', **arrays(2_000, obs=rng.normal(size=(2_000, 4)).astype(np.float32)))
    whole = (tmp_path / 'a.npz').read_bytes()
    changed = bytearray(whole)
    changed[300:340] = bytes(40)
    for part in (whole[: len(whole) // 2], bytes(changed), b''):
        (tmp_path / 'b.npz').write_bytes(part)
        with pytest.raises(UserError, match='b.npz is no file of arrays'):
            read_demonstrations(str(tmp_path / 'b.npz'), cartpole)
    np.save(tmp_path / 'c.npy', np.zeros(3))
    with pytest.raises(UserError, match='c.npy is no file of arrays'):
        read_demonstrations(str(tmp_path / 'c.npy'), cartpole)


def test_images_stay_bytes(tmp_path: Path) -> None:
    env = {'id': 'tiny_bricks'}
    policy = make_policy({'env': env, 'policy': {'model': {'encoder': 'mlp'}}})
    demos, _ = record_demonstrations(policy, env, 1)
    save_demonstrations(tmp_path / 'a.npz', demos)
    again = read_demonstrations(str(tmp_path / 'a.npz'), policy)
    assert again.obs.dtype == torch.uint8 and torch.equal(again.obs, demos.obs) and int(demos.obs.max()) > 1


def test_dataset_without_minari_names_the_extra(cartpole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *more: None)
    said = r"'D4RL/door/human-v2', which is no file .* needs minari, .* pip install '\.\[minari\]'"
    with pytest.raises(UserError, match=said):
        read_demonstrations('D4RL/door/human-v2', cartpole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('obs_space', 'action_space'), [('dict', 'tuple'), ('tuple', 'dict'), ('nested_mask', 'box_2d')]
)
def test_leaves_of_a_dataset_of_minari_keep_their_names(obs_space: str, action_space: str, dataset: Any) -> None:
    kwargs = {'obs': obs_space, 'action': action_space}
    policy = make_policy({'env': {'id': 'any_space', 'kwargs': kwargs}})
    env, n = AnySpace(**kwargs), 8
    obs, actions = [env.reset(seed=0)[0]], []
    env.action_space.seed(0)
    for _ in range(n):
        actions.append(env.action_space.sample())
        obs.append(env.step(actions[-1])[0])
    spaces = {'observation_space': env.observation_space, 'action_space': env.action_space}
    dataset('zoo/leaves-v0', [(stacked(obs), stacked(actions))], [n], jpeg_encoding=False, **spaces)
    demos = read_demonstrations('zoo/leaves-v0', policy)
    assert_replayed(policy, demos.policy_action(policy), stacked(actions), 1e-6)
    expected = dict(leaves(obs_to_tensor(policy.obs_space, stacked(obs[:n]))))
    assert all(torch.equal(x, expected[name]) for name, x in leaves(demos.obs))


def stacked(rows: Any) -> Any:
    """Stacks the observations or actions of several steps, leaf by leaf."""
    first = rows[0]
    if isinstance(first, dict):
        return {name: stacked([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked([row[i] for row in rows]) for i in range(len(first)))
    return np.stack([np.asarray(row) for row in rows])
