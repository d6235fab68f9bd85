"""Tables of tensor envs, beside those that TableEnv makes of the same env, one copy at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo import evaluate, load_policy, serial_pipeline
from zoo.agents.config import AgentsConfig
from zoo.agents.layout import ACTS, BEGINS, EPISODE, REWARD, ROWS, STATE
from zoo.agents.stage import look_at_agents, table_section
from zoo.agents.table import TableEnv
from zoo.agents.tensor_game import TensorGame
from zoo.agents.tensor_table import TensorTable
from zoo.core.spaces import ACTION_MASK
from zoo.env import make_vector_env
from zoo.env.config import env_config
from zoo.env.tensor.games import KuhnPoker, RockPaperScissors, TicTacToe
from zoo.env.tensor.spread import SimpleSpread


class Scripted(TensorGame):
    """A game whose first state has given random numbers."""

    def begin_with(self, noise):
        self._given = noise

    def _noise(self, n):
        return self._given if n else torch.zeros(1, 0)


def flat(tree):
    if isinstance(tree, dict):
        return {f'{name}.{key}': x for name, part in tree.items() for key, x in flat(part).items()}
    return {'': np.asarray(tree, np.float32)}


@pytest.mark.parametrize(
    ('kind', 'section'),
    [
        (KuhnPoker, {}),
        (KuhnPoker, {'state': 'concat'}),
        (TicTacToe, {}),
        (RockPaperScissors, {}),
        (SimpleSpread, {}),
        (SimpleSpread, {'state': 'env'}),
        (SimpleSpread, {'id': 'off'}),
        (
            SimpleSpread,
            {'policies': {'a': {}, 'b': {}}, 'mapping': {'agent_1': 'a', '*': 'b'}, 'state': 'concat'},
        ),
    ],
)
@pytest.mark.slow(ci=True)
def test_tensor_table_equals_table_env_in_rows_that_act(kind, section):
    """Random play of 60 steps or one episode: columns, observations of who acts, rewards and the end are the same."""
    game_name = {KuhnPoker: 'kuhn_poker', TicTacToe: 'tictactoe', RockPaperScissors: 'rock_paper_scissors'}
    cfg = env_config({'id': 'torch', 'game': game_name.get(kind, 'simple_spread')})
    layout = look_at_agents(cfg, AgentsConfig(**section))
    rng = np.random.default_rng(0)
    table = TensorTable(kind(), layout, 'clip')
    for _ in range(10):
        noise = torch.rand(1, kind().n_noise, generator=torch.Generator().manual_seed(int(rng.integers(1000))))
        game = Scripted(kind())
        game.begin_with(noise)
        single = TableEnv(game, layout)
        wanted, _ = single.reset(seed=0)
        state = table.reset(noise)
        reward = wanted_reward = 0.0
        is_over = False
        while not is_over:
            got = {name: x for name, x in flat(table.observe(state)).items()}
            columns = got[f'{ROWS}.'][0]
            np.testing.assert_allclose(columns[:, : REWARD + 1], wanted[ROWS][:, : REWARD + 1], atol=1e-6)
            assert reward == pytest.approx(wanted_reward, abs=1e-6)
            for group in layout.groups:
                acts = columns[list(group.slots), ACTS] > 0
                for name, x in flat({group.entry: wanted[group.entry]}).items():
                    np.testing.assert_allclose(got[name][0][acts], x[acts], atol=1e-6)
                    if name.endswith(f'{ACTION_MASK}.'):
                        assert got[name][0][~acts].all()
            if STATE in wanted:
                np.testing.assert_allclose(got[f'{STATE}.'][0], wanted[STATE], atol=1e-6)
            moves = {}
            numbers = []
            for group in layout.groups:
                masks = wanted[group.entry].get(ACTION_MASK) if isinstance(wanted[group.entry], dict) else None
                n = group.action_space.n
                moves[group.entry] = [
                    int(rng.choice(np.flatnonzero(np.ones(n) if masks is None else masks[i])))
                    for i in range(len(group.slots))
                ]
                numbers += moves[group.entry]
            wanted, wanted_reward, terminated, truncated, _ = single.step(
                {entry: np.array(chosen) for entry, chosen in moves.items()}
            )
            state, rewards, over = table.step(state, torch.tensor([numbers], dtype=torch.float32), torch.zeros(1, 0))
            reward = float(rewards[0])
            assert bool(over[0]) == terminated
            is_over = terminated or truncated


def test_tensor_tables_number_episodes_and_give_last_tables():
    """Kuhn poker by passes alone: an episode has two steps, so that each second step ends one; rewards sum up to 0."""
    cfg = env_config({'id': 'torch', 'game': 'kuhn_poker'})
    agents = AgentsConfig(policies={'a': {}, 'b': {}}, mapping=lambda agent, episode, copy: 'ab'[episode % 2])
    layout = look_at_agents(cfg, agents)
    env = make_vector_env(table_section(cfg, layout), 3)
    obs = env.reset(0)
    assert obs[ROWS][..., EPISODE].unique().tolist() == [0.0]
    for step in range(1, 7):
        done = env.step(torch.zeros(3, 2))
        assert done.obs[ROWS][..., EPISODE].unique().tolist() == [float(step // 2)]
        if step % 2:
            assert done.final_index is None
            continue
        assert done.terminated.all() and done.final_index.tolist() == [0, 1, 2]
        last = done.final_obs[ROWS]
        assert last[..., EPISODE].unique().tolist() == [float(step // 2 - 1)]
        assert last[..., REWARD].abs().unique().tolist() == [1.0] and not last[..., REWARD].sum()
        assert done.obs[ROWS][..., BEGINS].tolist() == [[1.0, 0.0]] * 3
        assert not done.obs[ROWS][..., REWARD].any()


def test_tensor_tables_cut_off_at_the_limit_show_the_last_observation():
    cfg = env_config({'id': 'torch', 'game': 'simple_spread', 'max_episode_steps': 4})
    layout = look_at_agents(cfg, AgentsConfig())
    env = make_vector_env(table_section(cfg, layout), 2)
    before = env.reset(0)
    for _ in range(4):
        done = env.step(torch.zeros(2, 3))  # nobody pushes, so that nobody moves unless two touch
    assert done.truncated.all() and not done.terminated.any()
    entry = layout.groups[0].entry
    np.testing.assert_allclose(done.final_obs[entry][:, :, 2:4], before[entry][:, :, 2:4], atol=0.05)
    assert not torch.equal(done.obs[entry], done.final_obs[entry])


def test_policy_of_a_tensor_game_plays_the_game_of_openspiel(tmp_path):
    pytest.importorskip('pyspiel', reason='the extra agents')
    run = serial_pipeline(
        {
            'exp_name': 'kuhn',
            'seed': 0,
            'max_env_step': 2048,
            'env': {'id': 'torch', 'game': 'kuhn_poker', 'collector_env_num': 16},
            'policy': {'collect': {'n_step': 32}, 'learn': {'batch_size': 256}, 'eval': {'n_episode': 4}},
            'agents': {'self_play': {'snapshot': {'every': 512}}},
        },
        run_dir=tmp_path / 'run',
    )
    assert run.env_step == 2048
    policy = load_policy(tmp_path / 'run', trust=True)
    assert len(evaluate(policy, 'pyspiel:kuhn_poker', n_episode=10).returns) == 10
