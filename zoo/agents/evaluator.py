"""Evaluation of several policies that act together in envs of several agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from zoo.agents.layout import ACTS, BEGINS, REWARD, ROWS, STATE, Layout
from zoo.agents.rows import ActionJoin, in_order
from zoo.core.data import Obs, State, Timestep, map_tensors
from zoo.env import AnyVectorEnv
from zoo.policy.config import MAX_EPISODE_STEPS
from zoo.policy.modes import EvalMode
from zoo.policy.sequences import replace_rows
from zoo.worker.evaluator import EpisodeCallback, Evaluation, Evaluator, Tally
from zoo.worker.infos import ALL_NUMBERS, InfoKeys


class AgentEvaluator(Evaluator):
    """Plays whole episodes in which every agent acts by its policy; counts the returns of agents and policies.

    Args: layout: of the envs; modes: of every policy, by its name in the layout; others: as of `Evaluator`.
    """

    def __init__(
        self,
        layout: Layout,
        env: AnyVectorEnv,
        modes: Mapping[str, EvalMode],
        n_episode: int,
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
        *,
        deterministic: bool = True,
        infos: InfoKeys = ALL_NUMBERS,
        quiet: bool = False,
    ) -> None:
        mode = joint_eval_mode(layout, modes, env, deterministic)
        super().__init__(env, mode, n_episode, max_episode_steps, deterministic=deterministic, infos=infos, quiet=quiet)
        self._layout = layout

    def _new_tally(self, callback: EpisodeCallback | None) -> Tally:
        return AgentTally(self._layout, self._quota, self._limit, self._infos, callback)


class AgentTally(Tally):
    """Counts the returns of agents too."""

    def __init__(self, layout: Layout, quota: np.ndarray, *args: Any) -> None:
        super().__init__(quota, *args)
        self._layout = layout
        self._of_episodes: list[list[np.ndarray]] = [[] for _ in quota]

    def begin(self) -> None:
        super().begin()
        self._of_agents = np.zeros((len(self.plays), len(self._layout.agents)))

    def record(self, timestep: Timestep) -> None:
        gained = timestep.obs[ROWS][..., REWARD].numpy(force=True).copy()
        if timestep.final_index is not None and timestep.final_obs is not None:
            gained[timestep.final_index.numpy()] = timestep.final_obs[ROWS][..., REWARD].numpy()
        self._of_agents += gained
        super().record(timestep)
        self._of_agents[(timestep.terminated | timestep.truncated).numpy(force=True)] = 0.0

    def _count(self, b: int, is_cut: bool, numbers: Mapping[str, float]) -> None:
        super()._count(b, is_cut, numbers)
        self._of_episodes[b].append(self._of_agents[b].copy())

    def evaluation(self) -> Evaluation:
        whole = super().evaluation()
        returns = np.array([row for of_env in self._of_episodes for row in of_env])
        layout = self._layout
        agents = {name: returns[:, i].tolist() for i, name in enumerate(layout.agents)}
        learners = {}
        if len(layout.groups) > 1:
            learners = {
                group.policy: Evaluation(returns[:, list(group.slots)].mean(1).tolist(), whole.lengths, whole.cut)
                for group in layout.groups
            }
        if len(agents) == 1:
            agents = {}
        return whole._replace(learners=learners, agents=agents)


class _EvalRows:
    """One policy acting for its agents on tables [B, ...]; keeps the recurrent state of its rows."""

    def __init__(self, layout: Layout, policy: str, mode: EvalMode, draws: bool) -> None:
        self._group = layout.group(policy)
        self._mode = mode
        self._draws = draws
        self._state: State = None

    def act(self, tables: Mapping[str, Any], generator: torch.Generator | None) -> torch.Tensor:
        group = self._group
        obs = in_order(map_tensors(lambda x: x.flatten(0, 1), tables[group.entry]), group.obs_space)
        if STATE in tables:
            obs[STATE] = tables[STATE].repeat_interleave(len(group.slots), 0)
        columns = tables[ROWS][:, list(group.slots)].flatten(0, 1)
        state = None
        if self._mode.initial_state is not None:
            initial = self._mode.initial_state(len(columns))
            state = initial
            if self._state is not None:
                state = replace_rows(columns[:, BEGINS] > 0, initial, self._state)
        if self._draws:
            assert self._mode.sample is not None, 'the evaluator has checked it'
            output = self._mode.sample(obs, state, generator)
        else:
            output = self._mode.forward(obs, state)
        if state is not None:
            self._state = replace_rows(columns[:, ACTS] > 0, output['state'], state)
        action: torch.Tensor = output['action']
        if self._mode.env_action is not None:
            return self._mode.env_action(action)
        return action


def joint_eval_mode(layout: Layout, modes: Mapping[str, EvalMode], env: AnyVectorEnv, deterministic: bool) -> EvalMode:
    """The eval mode of all policies together, whose functions take tables. Args: env: of tables."""
    join = ActionJoin(layout, env.action_space)
    parts = {name: _EvalRows(layout, name, mode, not deterministic) for name, mode in modes.items()}

    def forward(tables: Obs, state: State) -> dict[str, Any]:
        return {'action': join({name: part.act(tables, None).cpu() for name, part in parts.items()})}

    def sample(tables: Obs, state: State, generator: torch.Generator | None) -> dict[str, Any]:
        return {'action': join({name: part.act(tables, generator).cpu() for name, part in parts.items()})}

    if any(mode.sample is None for mode in modes.values()):
        return EvalMode(forward)
    return EvalMode(forward, sample=sample)
