"""Scenarios of VMAS by `vmas:name`: B worlds of several agents, simulated together in PyTorch.

VMAS itself begins no new episodes, and all its envs draw from one random state of the process. Here each vector env has a
random state of its own, and episodes begin where one ended, after their last observations were read.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs, leaf_items, map_tensors
from zoo.core.errors import did_you_mean
from zoo.core.spaces import Box, Dict, Discrete, Leaf, MultiDiscrete, Space
from zoo.env.errors import EnvContractError, EnvKwargsError, SeveralAgentsError, UnknownEnvError
from zoo.env.families.family import EnvFamily, EnvRequest
from zoo.env.tensor.agent_simulator import AgentOutcome, AgentSimulator, Seen
from zoo.env.tensor.simulator import BadValues

LIMIT = 100
"""Steps of an episode if env.max_episode_steps is not set: most scenarios have no end. It is the limit of BenchMARL."""
SET_BY_ZOO = {
    'scenario': 'env.id',
    'num_envs': 'env.collector_env_num and env.evaluator_env_num',
    'max_steps': 'env.max_episode_steps',
    'seed': 'seed',
    'device': 'nothing, since envs of several agents step on the CPU',
    'wrapper': 'nothing',
    'wrapper_kwargs': 'nothing',
    'dict_spaces': 'nothing',
    'clamp_actions': 'env.action_mode',
    'grad_enabled': 'nothing',
    'terminated_truncated': 'nothing',
}
"""Arguments of vmas.make_env that zoo sets, and what is set in their place."""
UNUSED = 'Scenario kwargs:'  # begins VMAS's warning about arguments that no scenario took
OfPackage = Any  # an object of a package that zoo does not import


def vmas_family(vmas: ModuleType, scenario: str, name: str) -> EnvFamily:
    """The family of a scenario. Raises: UnknownEnvError if VMAS has none of that name."""
    known = [*vmas.scenarios, *vmas.debug_scenarios, *vmas.mpe_scenarios]
    if scenario not in known:
        hint = did_you_mean(scenario, known, f'it has {", ".join(known)}.')
        raise UnknownEnvError(f'env {name!r}: VMAS has no scenario {scenario!r}; {hint}')

    def make_agents(request: EnvRequest, /, **kwargs: object) -> VmasSimulator:
        return make_vmas(vmas, scenario, request, kwargs)

    def make(request: EnvRequest, /, **kwargs: object) -> NoReturn:
        raise SeveralAgentsError(
            f'env {request.name!r} is a scenario of several agents, and this takes one of a single agent; train in it by '
            '`zoo train` or serial_pipeline, whose section agents says which policies act (docs/agents.md).'
        )

    return EnvFamily(make, make_agents=make_agents)


def make_vmas(vmas: ModuleType, scenario: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> VmasSimulator:
    """The worlds that a request asks for. Raises: EnvKwargsError for arguments that neither VMAS nor the scenario takes."""
    for key in kwargs:
        if key in SET_BY_ZOO:
            raise EnvKwargsError(f'env.kwargs has {key!r}, which zoo sets for {request.name!r}; set {SET_BY_ZOO[key]}.')
    if kwargs.get('multidiscrete_actions') and kwargs.get('continuous_actions', True):
        raise EnvKwargsError(
            f'env.kwargs.multidiscrete_actions is true for {request.name!r}, whose actions are continuous; set '
            'env.kwargs.continuous_actions=false too.'
        )
    limit = request.max_episode_steps or LIMIT
    own = OwnRandomState(vmas, request.seed)
    fixed: dict[str, Any] = dict(num_envs=request.n_env, device='cpu', max_steps=limit, terminated_truncated=True)
    make = partial(vmas.make_env, scenario, **fixed, **kwargs)
    with own, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        env = make()
    for warning in caught:
        text = str(warning.message)
        if text.startswith(UNUSED):
            raise EnvKwargsError(
                f'env.kwargs of {request.name!r}: VMAS says "{text}"; correct the names, or leave them out.'
            )
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not env.agents:
        raise EnvKwargsError(
            f'env.kwargs of {request.name!r} leave no agent for a policy, since all of them follow scripts; leave one to it.'
        )
    return VmasSimulator(env, make, own, request.name)


class OwnRandomState:
    """A random state that VMAS draws from within `with`, in place of the one that all its envs share.

    VMAS sets those of the process meanwhile, and sets them back unless it raises: then this does.
    """

    def __init__(self, vmas: ModuleType, seed: int) -> None:
        self._shared: list[Any] = vmas.simulator.environment.Environment.vmas_random_state
        self._own: list[Any] = []
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Args: seed: 64 bits."""
        words = np.random.SeedSequence(seed).generate_state(3, np.uint32).tolist()
        numpy_state = np.random.RandomState(words[1]).get_state()
        torch_state = torch.Generator().manual_seed(words[0]).get_state()
        self._own = [torch_state, numpy_state, random.Random(words[2]).getstate()]

    def __enter__(self) -> None:
        self._others = list(self._shared)
        self._of_process = (torch.random.get_rng_state(), np.random.get_state(), random.getstate())
        self._shared[:] = self._own

    def __exit__(self, kind: object, *_: object) -> None:
        self._own = list(self._shared)
        self._shared[:] = self._others
        if kind is not None:
            of_torch, of_numpy, of_python = self._of_process
            torch.random.set_rng_state(of_torch)
            np.random.set_state(of_numpy)
            random.setstate(of_python)


class VmasSimulator(AgentSimulator):
    """The worlds of an env of VMAS, which counts the limit of steps itself: an end at it is `truncated`.

    All agents act at all times, and end together.
    Args: env: made with terminated_truncated=True; make: makes another one; own: their random state.
    """

    def __init__(self, env: OfPackage, make: Callable[[], OfPackage], own: OwnRandomState, name: str) -> None:
        self.n_env = int(env.num_envs)
        self.source = env
        self.agents = tuple(str(agent.name) for agent in env.agents)
        self._env = env
        self._make = make
        self._own = own
        self._name = name
        self._everyone = torch.ones((self.n_env, len(self.agents)), dtype=torch.bool)
        with own:
            obs = env.reset()
        self.obs_spaces = tuple(_space_of(x) for x in obs)
        self.action_spaces = tuple(_action_space(env, agent) for agent in env.agents)
        self._is_single = [not space.shape for space in self.action_spaces]

    def reset(self, seed: int) -> Seen:
        with self._own:  # anew, since some scenarios keep numbers of the episodes before
            self.source = self._env = self._make()
        self._own.seed(seed)
        with self._own:
            obs = self._env.reset()
        self._n_step = 0
        self._bad: BadValues | None = None
        self._watch(obs)
        return Seen(obs, self._everyone)

    def step(self, actions: Sequence[Tensor]) -> AgentOutcome:
        # VMAS takes single choices as [B, 1], and would change the shape of a tensor of another one itself
        sent = [x.unsqueeze(1) if single else x for x, single in zip(actions, self._is_single, strict=True)]
        with self._own:
            reached, rewards, terminated, truncated, _ = self._env.step(sent)
        self._n_step += 1
        reward = torch.stack([self._column(x, 'reward') for x in rewards], 1).float()
        terminated = self._column(terminated, 'done').bool()
        ended = terminated | truncated
        seen = reached
        if bool(ended.any()):
            seen = self._renewed(ended, reached)
        self._watch(reached, reward)
        return AgentOutcome(
            Seen(seen, self._everyone), Seen(reached, self._everyone), reward, terminated, truncated & ~terminated
        )

    def find_bad(self) -> BadValues | None:
        return self._bad

    def render(self) -> object:
        return self._env.render(mode='rgb_array')

    def _renewed(self, ended: Tensor, reached: Sequence[Obs]) -> list[Obs]:
        """The observations with those of new episodes in the rows that ended; the others keep theirs."""
        env = self._env
        with self._own:
            if bool(ended.all()):
                return list(env.reset())
            for row in ended.nonzero().squeeze(1).tolist():
                env.reset_at(row, return_observations=False)
            (fresh,) = env.get_from_scenario(get_observations=True, get_rewards=False, get_infos=False, get_dones=False)
        return [_chosen(ended, new, old) for new, old in zip(fresh, reached, strict=True)]

    def _column(self, value: Tensor, what: str) -> Tensor:
        """[B, 1] or [B] -> [B]. Raises: EnvContractError for another shape."""
        if value.numel() != self.n_env:
            raise EnvContractError(
                f'env {self._name!r}: its {what} has shape {tuple(value.shape)}, wanted one for each of {self.n_env} envs; '
                'correct the scenario.'
            )
        return value.view(self.n_env)

    def _watch(self, obs: Sequence[Obs], reward: Tensor | None = None) -> None:
        """Notes the first env with a value that is not finite."""
        if self._bad is not None:
            return
        parts = [x.flatten(1).sum(1) for each in obs for _, x in leaf_items(each)]
        if reward is not None:
            parts.append(reward.sum(1))
        is_bad = ~torch.stack(parts, 1).isfinite().all(1)
        if bool(is_bad.any()):
            self._bad = BadValues(int(is_bad.nonzero()[0]), self._n_step)


def _chosen(rows: Tensor, new: Obs, old: Obs) -> Obs:
    """Observations `new` in rows [B] that are true, `old` elsewhere."""
    return map_tensors(lambda x, y: torch.where(rows.view(-1, *[1] * (x.dim() - 1)), x, y), new, old)


def _space_of(obs: Obs) -> Space:
    if isinstance(obs, Mapping):
        return Dict({name: _space_of(part) for name, part in obs.items()})
    bound = np.full(tuple(obs.shape[1:]), np.inf, np.float32)
    return Box(-bound, bound)


def _action_space(env: OfPackage, agent: OfPackage) -> Leaf:
    """The actions of an agent: Box, Discrete or MultiDiscrete, as env.kwargs say."""
    space = env.get_agent_action_space(agent)
    if env.continuous_actions:
        return Box(np.array(space.low, np.float32), np.array(space.high, np.float32))
    if env.multidiscrete_actions:
        nvec = tuple(int(n) for n in space.nvec)
        return MultiDiscrete(nvec, (0,) * len(nvec), (len(nvec),))
    return Discrete(int(space.n))
