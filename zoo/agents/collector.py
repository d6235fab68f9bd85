"""Collector of several policies, each of which acts for the rows of its agents in one set of envs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.agents.actors import ActorActing
from zoo.agents.compaction import Pending, Steps, compacted, drop_pending, needs_compaction
from zoo.agents.layout import ACTS, REWARD, ROWS, Layout
from zoo.agents.rows import Acted, ActionJoin, Owners, PolicyRows, TableRollout, outcomes, steps_of
from zoo.agents.self_play import League
from zoo.backend.executor import Acting, RecordingActing
from zoo.core.data import Rollout, State, Timestep, map_tensors
from zoo.core.ranks import ALONE, Ranks
from zoo.core.spaces import Space
from zoo.env import AnyVectorEnv
from zoo.policy.modes import CollectMode
from zoo.policy.sequences import replace_rows
from zoo.worker.collector import Collector, EnvGroup, RolloutExtras
from zoo.worker.evaluator import MOST_AGENTS
from zoo.worker.infos import NO_NUMBERS, InfoKeys

N_RECENT = 100  # episodes over which the returns of agents are averaged for the log


class JointActing:
    """The policies of several agents, acting as one on blocks of tables; an `Acting`.

    Args: tables: the block's observations, [T + 1, B, ...]; first: index of the first copy of the env in the run.
    Attributes: owners: [T + 1, B, A] int64, the policy of each agent, if that changes, see `Owners`.
    """

    def __init__(
        self, layout: Layout, modes: Mapping[str, CollectMode], join: ActionJoin, tables: Mapping[str, Any], first: int
    ) -> None:
        self._join = join
        self._columns = tables[ROWS]
        self._owners: Owners | None = None
        if layout.mapping is not None:
            self._owners = Owners(layout, self._columns.shape[1], first)
        self.owners = torch.zeros(self._columns.shape[:3], dtype=torch.int64)
        self._parts: dict[str, _PartActing] = {}
        for name, mode in modes.items():
            group = layout.group(name)
            rows = PolicyRows(tables, group)
            self._parts[name] = _PartActing(mode, rows, layout.groups.index(group), first * len(group.slots))

    @property
    def output(self) -> dict[str, Any]:
        """The outputs of each policy, by name."""
        return {name: part.acting.output for name, part in self._parts.items()}

    @property
    def state(self) -> State:
        """The recurrent states of the policies that have one, by name; None if none has."""
        return {name: part.acting.state for name, part in self._parts.items() if part.has_state} or None

    @property
    def initial(self) -> dict[str, State]:
        """The recurrent states of new episodes, by name."""
        return {name: part.initial for name, part in self._parts.items()}

    def begin(self) -> None:
        for part in self._parts.values():
            part.begin()

    def step(self, t: int) -> Tensor:
        owners = self.see(t)
        return self._join({name: part.step(t, owners) for name, part in self._parts.items()}, owners)

    def see(self, t: int) -> Tensor | None:
        """The policies of the agents at observation t, [B, A]; None: they never change."""
        if self._owners is None:
            return None
        self.owners[t] = self._owners.see(self._columns[t])
        return self.owners[t]

    def playing(self) -> list[int]:
        """The policies of running episodes, as indices of `Layout.groups`."""
        if self._owners is None:
            return list(range(len(self._parts)))
        return self._owners.now()

    def restart_all(self) -> None:
        """Called after a reset of all envs; the tables say which rows begin an episode."""
        if self._owners is not None:
            self._owners.restart()


class _PartActing:
    """One policy acting on its rows. A recurrent state begins anew with an episode, and stays while a row is idle."""

    def __init__(self, mode: CollectMode, rows: PolicyRows, index: int, first: int) -> None:
        self._rows = rows
        self._index = index
        self._to_env = mode.env_action
        self.acting: Acting = mode.start(rows.obs, first)
        if isinstance(self.acting, RecordingActing):
            self.acting.keep_whole_states()  # rows wait for their turns: a record of steps says too little
        self.initial = self.acting.state
        self.has_state = self.initial is not None

    def begin(self) -> None:
        self._rows.show(0)
        self.acting.begin()
        if self.has_state:
            self._restart(0)

    def step(self, t: int, owners: Tensor | None) -> Tensor:
        if t:
            self._rows.show(t)
        owned = None
        if owners is not None:
            owned = (owners == self._index).flatten()
        if isinstance(self.acting, ActorActing):
            self.acting.wanted = self._rows.acts(t, owned).cpu()
        if not self.has_state:
            action = self.acting.step(t)
        else:
            if t:
                self._restart(t)
            before = map_tensors(torch.clone, self.acting.state)
            action = self.acting.step(t)
            state = replace_rows(self._rows.acts(t, owned), self.acting.state, before)
            self.acting.state = state
            if self.acting.output:  # an actor keeps no output
                map_tensors(lambda block, x: block[t].copy_(x), self.acting.output['state'], state)
        if self._to_env is not None:
            return self._to_env(action)
        return action

    def _restart(self, t: int) -> None:
        self.acting.state = replace_rows(self._rows.begins(t), self.initial, self.acting.state)


def joint_mode(layout: Layout, modes: Mapping[str, CollectMode], space: Space) -> CollectMode:
    """The collect mode of all policies together, whose `start` makes a JointActing. Args: space: of the tables' actions."""
    join = ActionJoin(layout, space)
    n_of = {name: len(layout.group(name).slots) for name in modes}

    def start(obs: Mapping[str, Any], first: int = 0) -> Any:
        return JointActing(layout, modes, join, obs, first)

    def reset() -> None:
        for mode in modes.values():
            mode.reset()

    def begin(collect_iter: int, env_step: int | None = None) -> None:
        for mode in modes.values():
            mode.begin(collect_iter, env_step)

    def forget(copies: slice) -> None:
        for name, mode in modes.items():
            mode.forget(slice(copies.start * n_of[name], copies.stop * n_of[name]))

    first = next(iter(modes.values()))
    return first._replace(start=start, reset=reset, begin=begin, forget=forget, env_action=None)


class AgentCollector(Collector):
    """Makes the rollout of each policy from steps of envs of several agents.

    Args: layout: of the envs; modes: of every policy, by its name in the layout; learner_of: the names of their learners;
      trained: the policies that get rollouts; counts_agents: whether env steps are actions of agents, not steps of envs;
      marks_all: whether rollouts have the column is_reset also where each row is a sample, as several ranks need: they
      weigh samples together, and one of them may have rows that are none; others: as of `Collector`.
    Attributes: league: draws opponents and gets the results of episodes, if a policy plays against itself.
    """

    agent_step: int
    league: League | None = None

    def __init__(
        self,
        layout: Layout,
        envs: Sequence[AnyVectorEnv],
        modes: Mapping[str, CollectMode],
        learner_of: Mapping[str, str],
        trained: Sequence[str],
        infos: InfoKeys = NO_NUMBERS,
        first: int = 0,
        counts_agents: bool = False,
        marks_all: bool = False,
    ) -> None:
        super().__init__(envs, joint_mode(layout, modes, envs[0].action_space), infos, first)
        self._marks_all = marks_all
        self._layout = layout
        self._modes = modes
        self._learner_of = {name: learner for name, learner in learner_of.items() if name in trained}
        self._rows: dict[str, PolicyRows] = {}
        if self.groups:
            self._see_block()
        self._pending: dict[str, Pending | None] = dict.fromkeys(modes)
        self._initial: dict[str, State] = {}
        self.returns = AgentReturns(layout, self.n_env)
        self._counts_agents = counts_agents
        if counts_agents:
            self.step_per_row = len(layout.agents)
        self.agent_step = 0
        self._n_acted = self._n_row = 0  # since the last line of the log

    def _see_block(self) -> None:
        """Finds the rows of each policy in the block."""
        self._rows = {name: PolicyRows(self.block.obs, self._layout.group(name)) for name in self._modes}

    def reset(self, seed: np.random.SeedSequence) -> None:
        super().reset(seed)
        self._pending = dict.fromkeys(self._modes)
        self.returns.drop(slice(None))
        if self.league is not None:
            self.league.reset(self.env_step)

    def fill_block(self) -> RolloutExtras:
        if self.league is not None:
            self.league.begin_rollout(self.env_step, self._playing())
        return super().fill_block()

    def _playing(self) -> set[str]:
        """The policies that play in running episodes."""
        names = self._layout.policies
        actings: Sequence[Any] = [group.acting for group in self.groups]
        return {names[i] for acting in actings for i in acting.playing()}

    @torch.no_grad()
    def collect_by_name(self) -> dict[str, Rollout]:
        return self.timed(lambda: self._rollouts(self.fill_block()))

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        metrics = self.returns.metrics(ranks)
        if self.league is not None:
            metrics |= self.league.metrics()
        metrics['collect/agent_step'] = self.agent_step
        counts = ranks.gather((self._n_acted, self._n_row))
        n_row = sum(n for _, n in counts)
        if n_row:
            metrics['collect/acted_share'] = sum(n for n, _ in counts) / n_row
        self._n_acted = self._n_row = 0
        return metrics

    def _rollouts(self, extras: RolloutExtras) -> dict[str, Rollout]:
        for copies in extras.fresh:
            self.returns.drop(copies)
            for name, pending in self._pending.items():
                n = len(self._layout.group(name).slots)
                drop_pending(pending, slice(copies.start * n, copies.stop * n))
        n_step = self.n_transition()
        steps = self.record(extras)
        gained = outcomes(self.block.obs[ROWS], extras.finals)
        owners = self._owners()
        ended = self.returns.record(gained[..., REWARD], steps, owners)
        if self.league is not None:
            for policies, returns in ended:
                self.league.record(policies, returns)
        tables = TableRollout(gained, steps, extras.finals, self._layout.team)
        rollouts = {
            name: self._rollout_of(name, tables, self._acted(name, extras, owners)) for name in self._learner_of
        }
        n_acted = self._count_actions(steps)
        if self._counts_agents:
            n_step = n_acted
        self.env_step += n_step
        self.collect_iter += 1
        return {learner: rollouts[name] for name, learner in self._learner_of.items()}

    def _owners(self) -> Tensor | None:
        """The policy of each agent at each observation, [T + 1, B, A]; None: it never changes."""
        if self._layout.mapping is None:
            return None
        actings: Sequence[Any] = [group.acting for group in self.groups]
        for acting in actings:
            acting.see(len(self.block.rows))
        return torch.cat([acting.owners for acting in actings], 1)

    def _count_actions(self, timestep: Timestep) -> int:
        """Counts the actions of agents in a rollout; returns their number."""
        acts = self.block.obs[ROWS][:-1, ..., ACTS] > 0
        if timestep.is_reset is not None:
            acts = acts & ~timestep.is_reset.unsqueeze(-1)
        n_acted = int(acts.sum())
        self.agent_step += n_acted
        self._n_acted += n_acted
        self._n_row += acts.numel()
        return n_acted

    def _acted(self, name: str, extras: RolloutExtras, owners: Tensor | None) -> Acted:
        """The part of a policy in a rollout."""
        state = initial = None
        if extras.state is not None:
            state = extras.state.get(name)
        if state is not None:
            initial = self._initial_state(name)
        owned = None
        if owners is not None:
            owned = owners == self._layout.policies.index(name)
        return Acted(extras.output[name], state, initial, owned)

    def _rollout_of(self, name: str, tables: TableRollout, acted: Acted) -> Rollout:
        """The rollout of one policy."""
        rows = self._rows[name]
        rows.show(slice(None))
        steps = steps_of(rows, tables, acted)
        pending = self._pending[name]
        if not needs_compaction(steps, pending):
            return self._plain_rollout(name, steps)
        done, self._pending[name] = compacted(steps, pending)
        moved = Timestep(
            obs=None,
            reward=done.reward,
            terminated=done.terminated,
            truncated=done.truncated,
            final_obs=None,
            final_index=None,
            info={},
            is_reset=done.is_reset,
            begins=done.begins,
        )
        data = self._modes[name].process_transition(done.obs, done.output, moved)
        data = {**data, 'is_open': done.is_open}
        return Rollout(data, done.last_obs, done.final_obs, done.final_index, state=done.state)

    def _plain_rollout(self, name: str, steps: Steps) -> Rollout:
        """The rollout of rows that act in every step."""
        is_reset = steps.dropped
        begins = None
        if is_reset is None and self._marks_all:
            is_reset = torch.zeros_like(steps.terminated)
            begins = steps.begins[1:]
        timestep = Timestep(
            obs=map_tensors(lambda x: x[1:], steps.obs),
            reward=steps.reward,
            terminated=steps.terminated,
            truncated=steps.truncated,
            final_obs=None,
            final_index=None,
            info={},
            is_reset=is_reset,
            begins=begins,
        )
        data = self._modes[name].process_transition(map_tensors(lambda x: x[:-1], steps.obs), steps.output, timestep)
        last_obs = map_tensors(lambda x: x[-1], steps.obs)
        return Rollout(data, last_obs, steps.final_obs, steps.final_index, state=steps.state)

    def _initial_state(self, name: str) -> State:
        """The recurrent state of new episodes, [R, ...]."""
        if name not in self._initial:
            acting: Sequence[Any] = [group.acting for group in self.groups]
            states = [each.initial[name] for each in acting]
            self._initial[name] = map_tensors(lambda *x: torch.cat(x), *states)
        return self._initial[name]


class JoiningAgentCollector(AgentCollector):
    """Makes the rollouts of policies from blocks that another collector fills, such as that of runners.

    Args: source: the other collector; others: as of `AgentCollector`.
    """

    def __init__(
        self,
        source: Collector,
        layout: Layout,
        envs: Sequence[AnyVectorEnv],
        modes: Mapping[str, CollectMode],
        learner_of: Mapping[str, str],
        trained: Sequence[str],
        first: int = 0,
        counts_agents: bool = False,
        marks_all: bool = False,
    ) -> None:
        super().__init__(layout, envs, modes, learner_of, trained, NO_NUMBERS, first, counts_agents, marks_all)
        self.source = source
        self._first = first
        self._owners_now: Owners | None = None
        if layout.mapping is not None:
            self._owners_now = Owners(layout, self.n_env, first)

    @property
    def env_time(self) -> float:
        return self.source.env_time

    def _make_groups(self, envs: Sequence[AnyVectorEnv], infos: InfoKeys, first: int) -> list[EnvGroup]:
        """Returns no groups: these envs step where the other collector has them."""
        return []

    def reset(self, seed: np.random.SeedSequence) -> None:
        self.source.reset(seed)
        super().reset(seed)

    def fill_block(self) -> RolloutExtras:
        self.source.collect_iter = self.collect_iter
        self.source.env_step = self.env_step
        extras = self.source.fill_block()
        if not self._rows:  # the block is made when the first rollout arrives
            self.block = self.source.block
            self._see_block()
        return extras

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        return super().metrics(ranks) | self.source.metrics(ranks)

    def _owners(self) -> Tensor | None:
        if self._owners_now is None:
            return None
        return torch.stack([self._owners_now.see(columns).clone() for columns in self.block.obs[ROWS]])

    def _initial_state(self, name: str) -> State:
        if name not in self._initial:
            first = self._first * len(self._layout.group(name).slots)
            self._initial[name] = self._modes[name].start(self._rows[name].obs, first).state
        return self._initial[name]


class AgentReturns:
    """The returns of each agent in the last episodes. Args: n_copy: copies of the env."""

    def __init__(self, layout: Layout, n_copy: int) -> None:
        self._layout = layout
        self._sum = np.zeros((n_copy, len(layout.agents)))
        self._recent: deque[np.ndarray] = deque(maxlen=N_RECENT)
        self._of_policies = {group.policy: deque[float](maxlen=N_RECENT) for group in layout.groups}

    def drop(self, copies: slice) -> None:
        """Drops the running episodes of these copies."""
        self._sum[copies] = 0.0

    def record(
        self, reward: Tensor, timestep: Timestep, owners: Tensor | None = None
    ) -> list[tuple[list[str], np.ndarray]]:
        """Takes the rewards of a rollout, [T, B, A], the steps of the tables, and the policies of agents, see `Owners`.

        Returns: of each episode that ended, in order of time, the policy of each agent, if that changes, and the returns.
        """
        names = self._layout.policies
        ended: list[tuple[list[str], np.ndarray]] = []
        ends = (timestep.terminated | timestep.truncated).numpy(force=True)
        total = reward.cumsum(0, dtype=torch.float64).numpy(force=True)
        before = -self._sum  # what to subtract from the sums of each copy
        for t, b in np.argwhere(ends):
            if timestep.is_broken is None or not bool(timestep.is_broken[t, b]):
                returns = total[t, b] - before[b]
                self._recent.append(returns)
                owner = None
                if owners is not None:
                    owner = owners[t, b].numpy()
                    ended.append(([names[i] for i in owner], returns))
                self._add_to_policies(returns, owner)
            before[b] = total[t, b]
        self._sum = total[-1] - before
        return ended

    def _add_to_policies(self, returns: np.ndarray, owners: np.ndarray | None) -> None:
        """Adds an episode's returns to each policy: the mean over its agents."""
        for i, group in enumerate(self._layout.groups):
            of_policy = returns[list(group.slots)]
            if owners is not None:
                of_policy = returns[owners == i]
            if len(of_policy):
                self._of_policies[group.policy].append(float(of_policy.mean()))

    def metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """The mean returns by agent, and by policy where there are several: the mean over its agents; of all ranks."""
        recent: list[np.ndarray] = []
        of_policies: dict[str, list[float]] = {name: [] for name in self._of_policies}
        of_rank = {name: list(returns) for name, returns in self._of_policies.items()}
        for recent_of_rank, policies_of_rank in ranks.gather((list(self._recent), of_rank)):
            recent += recent_of_rank
            for name, returns in policies_of_rank.items():
                of_policies[name] += returns
        if not recent:
            return {}
        means = np.mean(recent, 0)
        metrics = {}
        if len(of_policies) > 1:
            metrics = {
                f'collect/{name}/return_mean': float(np.mean(returns))
                for name, returns in of_policies.items()
                if returns
            }
        if 1 < len(means) <= MOST_AGENTS:
            names = self._layout.agents
            metrics |= {f'collect/agent/{name}/return_mean': float(x) for name, x in zip(names, means, strict=True)}
        return metrics
