"""Evaluation of several policies that act together in envs of several agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.agents.actors import Actor
from zoo.agents.layout import ACTS, BEGINS, REWARD, ROWS, STATE, Layout
from zoo.agents.rows import ActionJoin, Owners, in_order
from zoo.core.data import Obs, State, Timestep, map_tensors
from zoo.env import AnyVectorEnv
from zoo.policy.config import MAX_EPISODE_STEPS
from zoo.policy.modes import EvalMode
from zoo.policy.sequences import replace_rows
from zoo.worker.evaluator import EpisodeCallback, Evaluation, Evaluator, Tally
from zoo.worker.infos import ALL_NUMBERS, InfoKeys


class AgentEvaluator(Evaluator):
    """Plays whole episodes in which every agent acts by its policy; counts the returns of agents and policies.

    Args: layout: of the envs; modes: of every policy, by its name in the layout; drawing: policies whose actions are always
      drawn; others: as of `Evaluator`.
    Attributes: draws: whether any policy draws its actions.
    """

    def __init__(
        self,
        layout: Layout,
        env: AnyVectorEnv,
        modes: Mapping[str, EvalMode],
        n_episode: int,
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
        *,
        drawing: Collection[str] = (),
        deterministic: bool = True,
        infos: InfoKeys = ALL_NUMBERS,
        quiet: bool = False,
    ) -> None:
        self._joint = JointEval(layout, env, modes, drawing)
        mode = EvalMode(self._joint.forward)
        if all(mode.sample is not None for mode in modes.values()):
            mode = EvalMode(self._joint.forward, sample=self._joint.sample)
        super().__init__(env, mode, n_episode, max_episode_steps, deterministic=deterministic, infos=infos, quiet=quiet)
        self._layout = layout
        self.draws = bool(drawing) or not deterministic

    def _play(
        self, seed: np.random.SeedSequence, generator: torch.Generator, tally: Tally, stop: Callable[[], bool]
    ) -> bool:
        self._joint.begin(generator, self.first_copy)
        return super()._play(seed, generator, tally, stop)

    def _new_tally(self, callback: EpisodeCallback | None) -> Tally:
        return AgentTally(self._layout, self._joint, self._quota, self._limit, self._infos, callback)


def modes_of(
    layout: Layout, modes: Mapping[str, EvalMode], actors: Mapping[str, Actor]
) -> tuple[dict[str, EvalMode], list[str]]:
    """The modes of all policies of a layout in its order, and the names of those that always draw their actions.

    Args: modes: of policies with a network; actors: of those that only act, others of no use here included.
    """
    every = {name: actor.mode for name, actor in actors.items()} | dict(modes)
    drawing = [name for name, actor in actors.items() if actor.draws and name in layout.policies]
    return {name: every[name] for name in layout.policies}, drawing


class AgentTally(Tally):
    """Counts the returns of agents too. Args: joint: the policies that act; others: as of `Tally`."""

    def __init__(self, layout: Layout, joint: JointEval, quota: np.ndarray, *args: Any) -> None:
        super().__init__(quota, *args)
        self._layout = layout
        self._joint = joint
        self._of_episodes: list[list[np.ndarray]] = [[] for _ in quota]
        self._owned: list[list[np.ndarray]] = [[] for _ in quota]  # the policy of each agent in each episode

    def begin(self) -> None:
        super().begin()
        self._of_agents = np.zeros((len(self.plays), len(self._layout.agents)))

    def record(self, timestep: Timestep) -> None:
        columns = timestep.obs[ROWS].cpu().clone()
        if timestep.final_index is not None and timestep.final_obs is not None:
            columns[timestep.final_index] = timestep.final_obs[ROWS]
        self._of_agents += columns[..., REWARD].numpy()
        if self._joint.owners is not None:
            self._now = self._joint.owners.numpy()
        super().record(timestep)
        self._of_agents[(timestep.terminated | timestep.truncated).numpy(force=True)] = 0.0

    def _count(self, b: int, is_cut: bool, numbers: Mapping[str, float]) -> None:
        if self._layout.scored is not None:
            is_own = self._now[b] == self._layout.policies.index(self._layout.scored)
            if is_own.any():
                self._total[b] = self._of_agents[b][is_own].mean()
        super()._count(b, is_cut, numbers)
        self._of_episodes[b].append(self._of_agents[b].copy())
        if self._joint.owners is not None:
            self._owned[b].append(self._now[b].copy())

    def evaluation(self) -> Evaluation:
        whole = super().evaluation()
        returns = np.array([row for of_env in self._of_episodes for row in of_env])
        layout = self._layout
        agents = {name: returns[:, i].tolist() for i, name in enumerate(layout.agents)}
        learners = {}
        if len(layout.groups) > 1:
            learners = self._of_policies(returns, whole)
        if len(agents) == 1:
            agents = {}
        whole = whole._replace(learners=learners, agents=agents, return_of=layout.return_of)
        if layout.scored is not None:
            return self._of_scored(whole, layout.policies.index(layout.scored))
        return whole

    def _of_scored(self, whole: Evaluation, index: int) -> Evaluation:
        """The episodes in which the policy whose return counts had an agent."""
        owned = np.array([row for of_env in self._owned for row in of_env])
        episodes = (owned == index).any(1).nonzero()[0].tolist()

        def chosen(values: Sequence[Any]) -> list[Any]:
            return [values[i] for i in episodes] if values else []

        return whole._replace(
            returns=chosen(whole.returns),
            lengths=chosen(whole.lengths),
            cut=chosen(whole.cut),
            infos={key: chosen(values) for key, values in whole.infos.items()},
            agents={name: chosen(values) for name, values in whole.agents.items()},
        )

    def _of_policies(self, returns: np.ndarray, whole: Evaluation) -> dict[str, Evaluation]:
        """The evaluation of each policy: the mean over its agents, in the episodes in which it had some."""
        groups = self._layout.groups
        plays = np.zeros((len(groups), *returns.shape), bool)  # which agents each policy played
        if self._layout.mapping is None:
            for i, group in enumerate(groups):
                plays[i][:, list(group.slots)] = True
        else:
            owned = np.array([row for of_env in self._owned for row in of_env])
            plays[:] = owned == np.arange(len(groups)).reshape(-1, 1, 1)
        cut = list(whole.cut) or [False] * len(returns)
        evaluations = {}
        for group, is_played in zip(groups, plays, strict=True):
            episodes = is_played.any(1).nonzero()[0].tolist()
            if episodes:
                evaluations[group.policy] = Evaluation(
                    [float(returns[i][is_played[i]].mean()) for i in episodes],
                    [whole.lengths[i] for i in episodes],
                    [cut[i] for i in episodes],
                )
        return evaluations


class _EvalRows:
    """One policy acting for its agents on tables [B, ...]; keeps the recurrent state of its rows."""

    def __init__(self, layout: Layout, policy: str, mode: EvalMode) -> None:
        self._group = layout.group(policy)
        self._index = layout.groups.index(self._group)
        self._mode = mode
        self._state: State = None

    def act(self, tables: Mapping[str, Any], generator: torch.Generator | None, owners: Tensor | None) -> Tensor:
        """The actions of its rows. Args: generator: None: the likeliest; owners: [B, A], the policy of each agent, or None."""
        group = self._group
        obs = in_order(map_tensors(lambda x: x.flatten(0, 1), tables[group.entry]), group.obs_space)
        if group.has_state:
            obs[STATE] = tables[STATE].repeat_interleave(len(group.slots), 0)
        columns = tables[ROWS][:, list(group.slots)].flatten(0, 1)
        state = None
        if self._mode.initial_state is not None:
            initial = self._mode.initial_state(len(columns))
            state = initial
            if self._state is not None:
                state = replace_rows(columns[:, BEGINS] > 0, initial, self._state)
        if generator is not None and self._mode.sample is not None:
            output = self._mode.sample(obs, state, generator)
        else:
            output = self._mode.forward(obs, state)
        if state is not None:
            acts = columns[:, ACTS] > 0
            if owners is not None:
                acts = acts & (owners == self._index).flatten()
            self._state = replace_rows(acts, output['state'], state)
        action: Tensor = output['action']
        if self._mode.env_action is not None:
            action = self._mode.env_action(action)
        return action.cpu()


class JointEval:
    """All policies acting together on tables.

    Attributes: generator: of policies whose actions are always drawn; owners: [B, A], the policy of each agent in the last step;
      None: agents never change their policies.
    """

    def __init__(
        self, layout: Layout, env: AnyVectorEnv, modes: Mapping[str, EvalMode], drawing: Collection[str]
    ) -> None:
        self._join = ActionJoin(layout, env.action_space)
        self._parts = {name: _EvalRows(layout, name, mode) for name, mode in modes.items()}
        self._drawing = drawing
        self._layout = layout
        self._n_copy = env.n_env
        self._owners: Owners | None = None
        self.owners: Tensor | None = None
        self.generator = torch.Generator()

    def begin(self, generator: torch.Generator, first: int) -> None:
        """Called before all envs begin new episodes. Args: first: number of the first copy among those of all ranks."""
        self.generator = generator
        if self._layout.mapping is not None:
            self._owners = Owners(self._layout, self._n_copy, first)

    def forward(self, tables: Obs, state: State) -> dict[str, Any]:
        """The likeliest actions of the policies, but for those that always draw."""
        return self._act(tables, {name: self.generator for name in self._drawing})

    def sample(self, tables: Obs, state: State, generator: torch.Generator | None) -> dict[str, Any]:
        """Actions that are drawn."""
        return self._act(tables, dict.fromkeys(self._parts, generator))

    def _act(self, tables: Obs, generators: Mapping[str, torch.Generator | None]) -> dict[str, Any]:
        if self._owners is not None:
            self.owners = self._owners.see(tables[ROWS])
        actions = {name: part.act(tables, generators.get(name), self.owners) for name, part in self._parts.items()}
        return {'action': self._join(actions, self.owners)}
