"""Transitions of agents that die, are born and wait for turns, worked by hand from the scripts of the envs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from tests.agents.envs import Clockwork, Rota
from zoo import SerialJob
from zoo.agents.layout import ACTS, ROWS, TERMINATED, TRUNCATED
from zoo.core.data import Rollout

GAMMA = 0.5
LAMBDA = 0.25
END = 'end'
"""What follows a transition that ends in a terminal state."""


class Entry(NamedTuple):
    """A transition: the step of its observation, its reward, and the step of the observation that follows, or END.

    is_cut: the agent was cut off.
    """

    t: int
    reward: float
    next_t: int | str
    is_cut: bool = False


A = [Entry(0, 1 + 2**3, 2), Entry(2, 2**6, END)]
"""Agent a of Rota: acts in steps 0 and 2, and earns 2 ** (3 * t) in step t."""
B = [Entry(1, 2**4 + 2**7 + 2**10, 4), Entry(4, 2**13 + 2**16, 6, is_cut=True)]
"""Agent b: what it earns in step 0 belongs to no action; it is cut off in step 5, and observes 6 then."""
C = [Entry(3, 2**11 + 2**14, 5), Entry(5, 2**17, 6), Entry(6, 2**20, END)]


class Seen(NamedTuple):
    """A rollout of the policy of all agents, and the samples made of it."""

    rollout: Rollout
    samples: dict[str, Any]


class Keep:
    """A callback that keeps copies of rollouts and samples."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def on_rollout(self, job: Any, rollout: Rollout) -> None:
        data = {name: x.clone() for name, x in rollout.data.items()}
        self._rollout = Rollout(data, rollout.last_obs.clone(), rollout.final_obs, rollout.final_index)

    def on_samples(self, job: Any, samples: dict[str, Any]) -> None:
        shape = self._rollout.data['reward'].shape
        self.seen.append(Seen(self._rollout, {name: x.view(*shape, *x.shape[1:]) for name, x in samples.items()}))


def run_config(root, env_id, n_step, policy=None, **sections):
    policy = policy or {}
    collect = dict(n_step=n_step, discount_factor=GAMMA, gae_lambda=LAMBDA)
    defaults = dict(
        type='ppo', collect=collect, learn=dict(batch_size=n_step), eval=dict(n_episode=1), model=dict(hidden_sizes=[8])
    )
    env = dict(id=env_id, collector_env_num=1, evaluator_env_num=1, vectorization='sync') | sections.pop('env', {})
    logger = dict(root=str(root), console='off', tensorboard=False, freq=1)
    return dict(max_env_step=1_000, logger=logger, env=env, policy=defaults | policy, **sections)


def collected(config, n_round):
    """The rollouts of a run that does not learn, the critic, and the actions counted."""
    keep = Keep()
    with SerialJob(config, callbacks=[keep]) as job:
        for _ in range(n_round):
            job.collect_round()
        n_action = job.collector.metrics()['collect/agent_step']
        critic = job.learner.policy.model.compute_critic
        return keep.seen, critic, n_action


def advantages(entries: list[Entry], value: Callable[[int], float]) -> list[float]:
    """GAE of the transitions of one agent in one rollout, backwards."""
    found: list[float] = []
    after = 0.0
    for entry in reversed(entries):
        next_value = 0.0
        if entry.next_t != END:
            next_value = value(int(entry.next_t))
        is_end = entry.next_t == END or entry.is_cut
        delta = entry.reward + GAMMA * next_value - value(entry.t)
        after = delta + GAMMA * LAMBDA * (0.0 if is_end else after)
        found.append(after)
    return found[::-1]


def check_rows(seen: Seen, critic: Any, expected: list[list[Entry]]) -> None:
    """Checks a rollout, with a row for each agent of each copy, against the transitions of each."""
    data = seen.rollout.data
    weight = seen.samples['weight']
    assert weight.shape[1] == len(expected)
    n_entry = sum(map(len, expected))
    for r, entries in enumerate(expected):
        agent = r % 3
        ids = [float(i == agent) for i in range(3)]

        def value(t: int, agent: int = agent, ids: list[float] = ids) -> float:
            return float(critic(torch.tensor([[float(t), float(agent), *ids]])).detach())

        places = weight[:, r].nonzero().flatten()
        assert data['obs'][places, r, 0].tolist() == [entry.t for entry in entries]
        assert data['obs'][places, r, 1].tolist() == [agent] * len(entries)
        assert data['reward'][places, r].tolist() == [entry.reward for entry in entries]
        assert data['done'][places, r].tolist() == [entry.next_t == END for entry in entries]
        # the mean over all places is 1
        torch.testing.assert_close(weight[places, r], torch.full((len(entries),), weight.numel() / n_entry))
        adv = seen.samples['adv'][places, r].tolist()
        wanted = advantages(entries, value)
        assert all(math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-5) for x, y in zip(adv, wanted, strict=True))


def test_turns_of_whole_episodes(tmp_path):
    seen, critic, n_action = collected(run_config(tmp_path, 'tests.agents.envs:Rota', 7), 2)
    for each in seen:
        check_rows(each, critic, [A, B, C])
    assert n_action == 14  # one agent acts in each step


def test_turns_over_ends_of_rollouts(tmp_path):
    """Rollouts of 5 steps: 0 to 4; then 5, 6 and 0 to 2 of the next episode."""
    seen, critic, n_action = collected(run_config(tmp_path, 'tests.agents.envs:Rota', 5), 2)
    check_rows(seen[0], critic, [A, B[:1], C[:1]])
    check_rows(seen[1], critic, [A, B[1:], C[1:]])
    assert n_action == 10


@pytest.mark.parametrize('autoreset', ['next_step', 'disabled'])
def test_turns_with_other_resets(autoreset, tmp_path):
    """With next_step an episode takes 8 steps, the last of which is the reset."""
    n_step = {'next_step': 8, 'disabled': 7}[autoreset]
    config = run_config(tmp_path, 'tests.agents.envs:Rota', n_step, env=dict(autoreset=autoreset))
    seen, critic, n_action = collected(config, 2)
    for each in seen:
        check_rows(each, critic, [A, B, C])
    assert n_action == 14


def test_limit_of_steps_cuts_off_agents_that_wait(tmp_path):
    """After 4 steps a has died; b and c are cut off, c after its own action in step 3, b while it waits."""
    config = run_config(tmp_path, 'tests.agents.envs:Rota', 4, env=dict(max_episode_steps=4))
    seen, critic, _ = collected(config, 2)
    b = [Entry(1, 2**4 + 2**7 + 2**10, 4, is_cut=True)]
    c = [Entry(3, 2**11, 4, is_cut=True)]
    for each in seen:
        check_rows(each, critic, [A, b, c])


def test_deaths_and_births_of_a_parallel_env(tmp_path):
    """See Clockwork: a acts in steps 0 and 1, b in 0 to 3, c in 2 to 4."""
    a = [Entry(0, 1, 1), Entry(1, 8, END)]
    b = [Entry(0, 2, 1), Entry(1, 16, 2), Entry(2, 128, 3), Entry(3, 1024, 4, is_cut=True)]
    c = [Entry(2, 256, 3), Entry(3, 2048, 4), Entry(4, 16384, END)]
    seen, critic, n_action = collected(run_config(tmp_path, 'tests.agents.envs:Clockwork', 5), 2)
    for each in seen:
        check_rows(each, critic, [a, b, c])
    assert n_action == 18


class Reborn(Clockwork):
    """Agent a dies in step 1, and lives again in steps 3 and 4; b lives all the time."""

    script = ('ab', 'ab', 'b', 'ab', 'ab', '')
    ends = {(1, 'a'): True, (4, 'a'): False, (4, 'b'): True}  # noqa: RUF012


def test_agent_that_comes_back_begins_an_episode_of_its_own(tmp_path):
    a = [Entry(0, 1, 1), Entry(1, 8, END), Entry(3, 2**9, 4), Entry(4, 2**12, 5, is_cut=True)]
    b = [Entry(t, 2 ** (3 * t + 1), t + 1) for t in range(4)] + [Entry(4, 2**13, END)]
    seen, critic, _ = collected(run_config(tmp_path, Reborn, 5), 1)
    check_rows(seen[0], critic, [a, b, []])
    model = dict(recurrent=dict(cell='gru', hidden_size=4))
    keep = Keep()
    with SerialJob(
        run_config(
            tmp_path,
            Reborn,
            5,
            dict(type='ppo', model=model, collect=dict(n_step=5), learn=dict(batch_size=5, sequence=dict(len=5))),
        ),
        callbacks=[keep],
    ) as job:
        rollouts = job.collector.collect_by_name()
        assert rollouts['shared' if 'shared' in rollouts else ''].data['is_first'][:, 0].tolist()[1:4] == [
            False,
            True,
            False,
        ]


class Silent(Clockwork):
    """Only b lives in step 0 and 1; nobody but c from then on."""

    script = ('b', 'b', 'c', 'c', 'c', '')
    ends = {(1, 'b'): True, (4, 'c'): True}  # noqa: RUF012


def test_policy_whose_agents_are_idle_in_a_whole_rollout_learns_nothing_from_it(tmp_path):
    """The agents of `quiet` are a, who never lives: all weights are 0, and no update may make a parameter nan."""
    agents = dict(policies=dict(quiet={}, loud={}), mapping={'a': 'quiet', '*': 'loud'})
    with SerialJob(run_config(tmp_path, Silent, 5, agents=agents)) as job:
        before = {name: x.clone() for name, x in job.learners['quiet'].policy.state_dict()['model'].items()}
        for _ in range(3):
            job.iteration()
        after = job.learners['quiet'].policy.state_dict()['model']
        assert all(torch.equal(x, after[name]) for name, x in before.items())
        loud = job.learners['loud'].policy.state_dict()['model']
        assert all(x.isfinite().all() for x in loud.values())


class Faulty(Rota):
    """Rota that raises in step 3 of an episode, once in all copies."""

    faults: ClassVar[list[int]] = []

    def step(self, action: Any) -> None:
        if self._t == 3 and action is not None and self.faults:
            self.faults.clear()
            raise RuntimeError('the game has crashed')
        super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize('vectorization', ['sync', 'async'])
def test_nothing_is_learned_from_an_episode_that_broke_off(vectorization, tmp_path):
    """Copy 0 raises in step 3, and its next episode begins with the last step of the rollout; in processes both do."""
    Faulty.faults[:] = [1]
    env = dict(collector_env_num=2, on_error='restart', vectorization=vectorization, check=False)
    seen, critic, n_action = collected(run_config(tmp_path, Faulty, 5, env=env), 2)
    if vectorization == 'sync':
        check_rows(seen[0], critic, [[], [], [], A, B[:1], C[:1]])
        after = [A, B, C[:2]]  # steps 1 to 5 of an episode whose first action came before
        check_rows(seen[1], critic, [*after, A, B[1:], C[1:]])
        assert n_action == 1 + 5 + 5 + 5
    else:  # a new process has the fault again: in the second rollout steps 1, 2 and 3, and then 0 and 1 of the next episode
        assert not seen[0].samples['weight'].any()
        check_rows(seen[1], critic, [A[:1], [], []] * 2)
        assert n_action == (1 + 2) * 2


def test_targets_of_dqn_count_the_actions_of_each_agent(tmp_path):
    """n_return 2 is two actions of the same agent: r + gamma r', and gamma ** 2 from what it observes then; gamma is 1/2."""
    policy = dict(
        type='dqn',
        collect=dict(n_step=7, n_return=2, discount_factor=GAMMA),
        learn=dict(batch_size=7),
        model=dict(hidden_sizes=[8]),
    )
    config = run_config(tmp_path, 'tests.agents.envs:Rota', 7, policy, buffer=dict(n_sample=7))
    seen, _, _ = collected(config, 1)
    samples = seen[0].samples
    expected = [
        [(A[0].reward + A[1].reward / 2, 0.0, None), (A[1].reward, 0.0, None)],
        [(B[0].reward + B[1].reward / 2, 0.25, 6), (B[1].reward, 0.5, 6)],
        [
            (C[0].reward + C[1].reward / 2, 0.25, 6),
            (C[1].reward + C[2].reward / 2, 0.0, None),
            (C[2].reward, 0.0, None),
        ],
    ]
    for r, entries in enumerate(expected):
        for k, (reward, discount, next_t) in enumerate(entries):
            assert (samples['reward'][k, r], samples['discount'][k, r]) == (reward, discount)
            if next_t is not None:
                assert samples['next_obs'][k, r, :2].tolist() == [next_t, r]
        assert (samples['weight'][:, r] > 0).tolist() == [k < len(entries) for k in range(7)]


class Finite(Clockwork):
    """Clockwork whose dead agents observe zeros, not nan."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, *rest = super().step(actions)
        return {agent: torch.tensor(x).nan_to_num(0).numpy() for agent, x in obs.items()}, *rest


class LastWords(Clockwork):
    """Clockwork in which the last observation of an agent that dies is nan."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, terminated, *rest = super().step(actions)
        for agent, is_dead in terminated.items():
            if is_dead:
                obs[agent] = obs[agent] * math.nan
        return obs, rewards, terminated, *rest


KINDS = {
    'ppo': dict(type='ppo', learn=dict(batch_size=10, reward_norm=True, value_norm=True)),
    'eager': dict(type='ppo', learn=dict(batch_size=10, executor='eager')),
    'ppg': dict(type='ppg', learn=dict(batch_size=10, aux_freq=2, aux_batch_size=20)),
    'lstm': dict(
        type='ppo',
        learn=dict(batch_size=10, sequence=dict(len=5)),
        model=dict(recurrent=dict(cell='lstm', hidden_size=4)),
    ),
    'dqn': dict(type='dqn', learn=dict(batch_size=8)),
}


def trained(root, env, kind, poison=False):
    """All tensors of the policy after three rounds. Args: poison: writes numbers into the rows of agents that neither act nor end."""
    policy = dict(KINDS[kind])
    policy['model'] = dict(obs_norm=True, hidden_sizes=[8]) | policy.get('model', {})
    policy['collect'] = dict(n_step=5)
    sections = {}
    if kind == 'dqn':
        sections['buffer'] = dict(n_sample=32)
    config = run_config(root, env, 5, policy, **sections)
    config['env']['collector_env_num'] = 2
    config['env']['check'] = False
    with SerialJob(config) as job:
        collector = job.collector
        fill = collector.fill_block

        def poisoned() -> Any:
            extras = fill()
            columns = collector.block.obs[ROWS]
            is_idle = (columns[..., [ACTS, TERMINATED, TRUNCATED]] == 0).all(-1)
            collector.block.obs['of_shared'][is_idle] = 777.0
            return extras

        if poison:
            collector.fill_block = poisoned
        for _ in range(3):
            job.iteration()
        return job.learner.policy.state_dict()


def tensors(tree, path=()):
    if isinstance(tree, dict):
        return {name: x for key, part in tree.items() for name, x in tensors(part, (*path, key)).items()}
    if isinstance(tree, torch.Tensor):
        return {path: tree}
    return {}


@pytest.mark.slow
@pytest.mark.parametrize('env', [Clockwork, Finite])
@pytest.mark.parametrize('kind', KINDS)
def test_agents_that_do_not_act_change_no_bit(kind, env, tmp_path):
    """Of dead agents Clockwork shows nan. With Finite numbers are written into the rows themselves."""
    clean = tensors(trained(tmp_path / '1', Finite, kind))
    assert any('norm' in str(path) or 'input' in str(path) for path in clean)
    other = tensors(trained(tmp_path / '2', env, kind, poison=env is Finite))
    assert [path for path, x in clean.items() if not torch.equal(x, other[path])] == []


@pytest.mark.parametrize('kind', ['ppo', 'dqn'])
def test_nan_as_last_observation_of_the_dead_makes_no_parameter_nan(kind, tmp_path):
    state = tensors(trained(tmp_path, LastWords, kind))
    assert all(x.isfinite().all() for x in state.values() if x.is_floating_point())


def test_script_of_turns_ends_as_it_says():
    env = Rota()
    env.reset()
    acted = ''
    while env.agents:
        agent = env.agent_selection
        if env.terminations[agent] or env.truncations[agent]:
            env.step(None)
        else:
            acted += agent
            env.step(0)
    assert acted == 'abacbcc'


@pytest.mark.long
@pytest.mark.parametrize('n_step', [1, 3, 5, 9])
def test_reward_norm_is_of_the_sums_of_each_agent(n_step, tmp_path):
    """Five episodes of 7 steps are 35 sums of rewards; where rollouts end does not matter."""
    gamma = 0.9
    sums = []
    for entries in (A, B, C):
        total = 0.0
        for entry in entries:
            total = gamma * total + entry.reward
            sums.append(total)
    policy = dict(
        type='ppo',
        collect=dict(n_step=n_step, discount_factor=gamma),
        learn=dict(batch_size=n_step, reward_norm=True, adv_norm='off'),
        model=dict(hidden_sizes=[8]),
    )
    with SerialJob(run_config(tmp_path, 'tests.agents.envs:Rota', n_step, policy)) as job:
        for _ in range(5 * 7 * 9 // n_step):  # 45 episodes, whole ones for each n_step
            job.collect_round()
        statistics = job.learner.policy.state_dict()['normalizer']
    exact = torch.tensor(sums, dtype=torch.float64)
    assert float(statistics['reward.count']) == pytest.approx(45 * 7, abs=1)
    assert float(statistics['reward.mean']) == pytest.approx(float(exact.mean()), rel=1e-3)
    assert float(statistics['reward.var']) == pytest.approx(float(exact.var(correction=0)), rel=1e-3)


@pytest.mark.parametrize('kind', ['episode', 'baseline'])
def test_whole_episodes_are_those_that_have_ended(kind, tmp_path):
    """Of 12 steps an episode takes 7. In the 5 of the next one a has died; b and c have acted once and go on, with weight 0."""
    policy = dict(type='ppo', model=dict(hidden_sizes=[8]), collect=dict(n_step=12), learn=dict(batch_size=12))
    if kind == 'episode':
        policy['collect']['batch_mode'] = 'episode'
    else:
        policy['collect']['estimator'] = 'returns'
        policy['learn']['baseline'] = 'none'
    seen, _, _ = collected(run_config(tmp_path, 'tests.agents.envs:Rota', 12, policy), 1)
    assert (seen[0].samples['weight'] > 0).sum(0).tolist() == [2 * len(A), len(B), len(C)]
    assert (~seen[0].rollout.data['is_reset']).sum(0).tolist() == [2 * len(A), len(B) + 1, len(C) + 1]
