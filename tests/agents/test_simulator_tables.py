"""Tables of simulators beside those that TableEnv makes of the same simulator, one copy at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tests.agents.turns  # noqa: F401  # registers test_squares
from tests.env.tensor.vmas_fake import vmas as fake
from zoo import evaluate, load_policy, serial_pipeline
from zoo.agents.config import AgentsConfig
from zoo.agents.games import make_game
from zoo.agents.layout import ACTS, BEGINS, EPISODE, REWARD, ROWS, STATE, TERMINATED
from zoo.agents.stage import look_at_agents, table_section
from zoo.agents.table import TableEnv
from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK, Dict
from zoo.env import EnvContractError, EnvError, UnsupportedEnvError, make_vector_env
from zoo.env.config import env_config
from zoo.env.interface import EnvCommand
from zoo.env.tensor.vmas_scenarios import vmas_family

if 'test_line' not in ENV_REGISTRY:
    ENV_REGISTRY.register('test_line')(vmas_family(fake, 'line', 'test_line'))

POLICIES = {'a': {}, 'b': {}}
PLAYERS = {'policies': POLICIES, 'mapping': {'first': 'b', '*': 'a'}}
WALKERS = {'policies': POLICIES, 'mapping': {'near': 'b', '*': 'a'}}


def made(env: dict[str, Any], n_env: int, **agents: Any) -> tuple[Any, Any]:
    """The vector env of tables, and its layout."""
    cfg = env_config(env)
    layout = look_at_agents(cfg, AgentsConfig(**agents))
    return make_vector_env(table_section(cfg, layout), n_env), layout


def flat(tree: Any, entry: str = '') -> dict[str, np.ndarray]:
    if isinstance(tree, dict):
        return {key: x for name, part in tree.items() for key, x in flat(part, f'{entry}.{name}').items()}
    return {entry: np.asarray(tree, np.float32)}


def random_actions(table: Any, layout: Any, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], torch.Tensor]:
    """Legal actions of a table of one copy, by entry and as one row."""
    by_entry = {}
    for group in {group.entry: group for group in layout.groups}.values():
        n = len(group.slots)
        rows = table[group.entry]
        if hasattr(group.action_space, 'low'):
            by_entry[group.entry] = rng.uniform(-1, 1, (n, *group.action_space.shape)).astype(np.float32)
        else:
            masks = np.ones((n, group.action_space.n))
            if isinstance(rows, dict) and ACTION_MASK in rows:
                masks = rows[ACTION_MASK]
            by_entry[group.entry] = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
    row = np.concatenate([np.ravel(x) for x in by_entry.values()]).astype(np.float32)
    return by_entry, torch.from_numpy(row).unsqueeze(0)


@pytest.mark.parametrize(
    ('env', 'agents'),
    [
        ({'id': 'test_squares'}, {}),
        ({'id': 'test_squares', 'max_episode_steps': 2}, PLAYERS),
        ({'id': 'test_squares'}, {'state': 'concat', **PLAYERS}),
        ({'id': 'test_line', 'max_episode_steps': 5}, {'pad': True}),
        ({'id': 'test_line', 'max_episode_steps': 5}, {'state': 'concat', **WALKERS}),
        ({'id': 'test_line', 'max_episode_steps': 5, 'kwargs': {'continuous_actions': False}}, {**WALKERS, 'id': 'on'}),
    ],
)
def test_tables_equal_those_of_table_env(env: dict[str, Any], agents: dict[str, Any]) -> None:
    """Random play of 30 steps of one copy: columns, rows of who acts, masks of who does not, rewards, flags and last tables."""
    vector, layout = made(env, 1, **agents)
    single = TableEnv(make_game(env_config(env)), layout)  # the simulator has the limit
    rng = np.random.default_rng(0)
    reset = vector.simulator.reset
    vector.simulator.reset = lambda _: reset(int(np.random.default_rng(4).integers(2**63)))  # as the game draws it
    wanted, _ = single.reset(seed=4)
    got = vector.reset(0)
    n_end = 0
    for _ in range(30):
        _check(got, wanted, layout)
        by_entry, row = random_actions(wanted, layout, rng)
        wanted, reward, terminated, truncated, _ = single.step(by_entry)
        step = vector.step(row)
        got = step.obs
        assert float(step.reward) == pytest.approx(reward, abs=1e-5)
        assert (bool(step.terminated), bool(step.truncated)) == (terminated, truncated)
        if terminated or truncated:
            n_end += 1
            last = step.final_obs
            assert (last[ROWS][0, :, TERMINATED] > 0).all() == terminated
            np.testing.assert_allclose(last[ROWS][0, :, REWARD], wanted[ROWS][:, REWARD], atol=1e-6)
            for entry in {group.entry for group in layout.groups}:
                np.testing.assert_allclose(*_without_masks(last[entry], wanted[entry]), atol=1e-6)
            if STATE in wanted:
                np.testing.assert_allclose(last[STATE][0], wanted[STATE], atol=1e-6)
            break
    assert n_end == 1


def _check(got: Any, wanted: Any, layout: Any) -> None:
    columns = got[ROWS][0].numpy()
    np.testing.assert_allclose(columns[:, : REWARD + 1], wanted[ROWS][:, : REWARD + 1], atol=1e-6)
    for group in layout.groups:
        acts = columns[list(group.slots), ACTS] > 0
        for name, x in flat(wanted[group.entry]).items():
            row = flat(got[group.entry])[name][0]
            np.testing.assert_allclose(row[acts], x[acts], atol=1e-6)
            if name.endswith(ACTION_MASK):
                assert row[~acts].all()
    if STATE in wanted:
        np.testing.assert_allclose(got[STATE][0], wanted[STATE], atol=1e-6)


def _without_masks(last: Any, wanted: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a last table and of TableEnv's, side by side."""
    parts = flat(wanted)
    names = [name for name in parts if not name.endswith(ACTION_MASK)]
    rows = flat(last)
    return (
        np.concatenate([rows[name][0].ravel() for name in names]),
        np.concatenate([parts[name].ravel() for name in names]),
    )


def test_copies_begin_new_episodes_alone_and_number_them() -> None:
    """All take the squares 1, 2, 3, then 0, but copy 1, which takes 0 at once: it ends four games in four steps."""
    mapping = {'policies': {'a': {}, 'b': {}}, 'mapping': lambda agent, episode, copy: 'ab'[episode % 2]}
    env, _ = made({'id': 'test_squares'}, 2, **mapping)
    obs = env.reset(0)
    assert obs[ROWS][:, :, BEGINS].sum(1).tolist() == [1.0, 1.0]
    for t, square in enumerate((1, 2, 3, 0)):
        step = env.step(torch.tensor([[square, square], [0, 0]], dtype=torch.float32))
        assert step.terminated.tolist() == [square == 0, True]
        assert step.obs[ROWS][1, 0, EPISODE] == t + 1
        assert step.final_index.tolist() == ([0, 1] if square == 0 else [1])
        last = step.final_obs[ROWS][-1]
        assert last[:, EPISODE].tolist() == [float(t)] * 2
        assert sorted(last[:, REWARD].tolist()) == [-1.0, 1.0]
        assert step.obs[ROWS][1, :, BEGINS].sum() == 1.0
        if t == 0:  # in copy 0 the other player makes its first move; then nobody begins
            assert step.obs[ROWS][0, :, BEGINS].sum() == 1.0
        elif square:
            assert step.obs[ROWS][0, :, BEGINS].sum() == 0.0


def test_rollouts_get_what_the_simulator_gives_without_another_copy() -> None:
    """The simulator gets its actions where the map of actions has put them, and its results are written into the block."""
    env, layout = made({'id': 'test_line'}, 3, id='off', **WALKERS)
    env.reset(0)
    block = env.block(2)
    copied = []
    inner = env.simulator

    step = inner.step

    def spied(actions: Any) -> Any:
        out = step(actions)
        copied.append((actions[0].data_ptr(), out.seen.obs[0]))
        return out

    inner.step = spied
    action = torch.zeros(3, 4)
    env.send(action)
    env.receive(block, 0)
    address, obs = copied[0]
    assert torch.equal(block.obs[layout.group('b').entry][1, :, 0], obs)
    assert inner.source.sent[0].data_ptr() == address


def test_what_is_not_there_is_refused_in_a_sentence() -> None:
    env, _ = made({'id': 'test_squares'}, 2)
    with pytest.raises(EnvError, match='call reset first'):
        env.step(torch.zeros(2, 2))
    env.reset(0)
    with pytest.raises(UnsupportedEnvError, match='infos are not read'):
        env.request_infos(['speed'])
    with pytest.raises(UnsupportedEnvError, match='take no options'):
        env.set_reset_options({'a': 1})
    with pytest.raises(UnsupportedEnvError, match=r'set of .breaks_at.*use env.kwargs'):
        env.command(EnvCommand('set', 'breaks_at', (1,)))
    assert env.command(EnvCommand('get', 'breaks_at')) == [0]
    env.simulator.breaks_at = 1
    env.step(torch.ones(2, 2))
    with pytest.raises(EnvContractError, match=r'index 1, step 1: .*not finite'):
        env.check()


@pytest.mark.parametrize('keys', [{'ends': {'truncated': 'terminal'}}, {'drop_obs': ['board']}])
def test_keys_of_single_envs_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedEnvError, match='is set but'):
        made({'id': 'test_squares', **keys}, 2)


@pytest.mark.long
@pytest.mark.slow
def test_self_play_in_a_simulator_learns_to_win_at_once(tmp_path: Any) -> None:
    """Who moves first takes the square 0: against random play, which does so in a quarter of its moves, it seldom loses."""
    result = serial_pipeline(
        dict(
            exp_name='squares',
            max_env_step=6_000,
            env=dict(id='test_squares', collector_env_num=8, evaluator_env_num=4),
            agents=dict(self_play=dict(snapshot=dict(every=2_000))),
            policy=dict(
                type='ppo',
                collect=dict(n_step=32),
                learn=dict(batch_size=64, learning_rate=3e-3),
                eval=dict(eval_freq=100_000, n_episode=100),
            ),
            logger=dict(root=str(tmp_path), console='off', tensorboard=False),
        )
    )
    policy = load_policy(result.run_dir)
    assert isinstance(policy.obs_space, Dict)
    evaluation = evaluate(policy, {'id': 'test_squares'}, n_episode=50, seed=1)
    assert evaluation.lengths == [1] * 50  # both play greedily, and the first move wins
