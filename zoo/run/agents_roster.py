"""Roster of an env of several agents: a learner for each policy of the section `agents`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.agents.actors import FUNCTION, SAVED, as_collect_mode, kind_of
from zoo.agents.collector import AgentCollector, JoiningAgentCollector
from zoo.agents.config import SHARED, AgentsConfig
from zoo.agents.evaluator import AgentEvaluator, modes_of
from zoo.agents.inspection import check_agents
from zoo.agents.layout import STATE, Layout, entries_of_actors, policy_names, trained_policies
from zoo.agents.self_play import BUILT_IN
from zoo.agents.stage import look_at_agents, refuse_keys_of_single_envs, table_section
from zoo.cluster.config import split_problems, split_sizes
from zoo.config.section import ConfigError, fields_of, plain, validate
from zoo.core.action_map import action_width
from zoo.core.errors import UserError, unknown_name
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Space, leaf_spaces, space_words
from zoo.env import AnyVectorEnv, EnvConfig
from zoo.policy.base import Policy
from zoo.policy.modes import CollectMode, EvalMode
from zoo.run.agents_player import AgentsPlayer, actors_of
from zoo.run.base_config import JobConfig
from zoo.run.config import fill_schedules, frozen_config, job_schema, resolve_config
from zoo.run.learner import SINGLE, config_of_learner
from zoo.run.roster import Roster
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluator, Player
from zoo.worker.infos import InfoKeys

logger = logging.getLogger(__name__)

OF_POLICIES = ('type', 'model', 'learn', 'collect', 'eval', 'device', 'n_thread')


class AgentsRoster(Roster):
    """The learners of a run in an env of several agents, and how their policies act together.

    One env is made and reset, to see its agents and their spaces. A single policy is the learner without a name.
    Args: cfg: of the run, complete; layout: of its env, if it is known already.   Raises: ConfigError; errors of `make_env`.
    """

    def __init__(self, cfg: JobConfig, layout: Layout | None = None) -> None:
        refuse_keys_of_single_envs(cfg.env)
        self._cfg = cfg
        names = policy_names(cfg.agents)
        self._trained = trained_policies(cfg.agents)
        self._layout = layout or look_at_agents(cfg.env, cfg.agents)
        learners = [name for name in names if kind_of(cfg.agents.policies.get(name)) is None]
        self._learner_of = {name: name for name in learners}
        if len(learners) == 1:
            self._learner_of = {learners[0]: SINGLE}
        self._actors = actors_of(cfg.agents, self._layout, cfg.env.action_mode)
        self._policy_of = {learner: policy for policy, learner in self._learner_of.items()}
        self._configs: dict[int, dict[str, JobConfig]] = {}
        self.has_idle_rows = len(self._layout.agents) > 1
        self._counts_agents = cfg.agents.count_by == 'agent'
        if cfg.agents in (AgentsConfig(), AgentsConfig(policies={SHARED: {}})):
            self._say_defaults()
        if self.return_of:
            logger.info('the return of an episode, in the lines below and in the log, is: %s', self.return_of)

    @property
    def layout(self) -> Layout:
        """The rows of the env."""
        return self._layout

    @property
    def return_of(self) -> str:
        return self._layout.return_of

    def _say_defaults(self) -> None:
        layout = self._layout
        group = layout.groups[0]
        logger.info(
            'env %r has %d agents: one policy acts for all of them, each with the observation %s; the section agents changes this',
            layout.name,
            len(layout.agents),
            space_words(group.obs_space),
        )

    def configs(self, cfg: JobConfig) -> dict[str, JobConfig]:
        n_copy = cfg.env.collector_env_num
        if n_copy not in self._configs:
            n_rank = self._cfg.env.collector_env_num // n_copy
            configs = {}
            for policy, learner in self._learner_of.items():
                if n_rank == 1:
                    configs[learner] = self._config_of(cfg, policy)
                else:
                    configs[learner] = self._share_of(self.configs(self._cfg)[learner], policy, n_rank, cfg)
            self._configs[n_copy] = configs
        return self._configs[n_copy]

    def _share_of(self, whole: JobConfig, name: str, n_rank: int, cfg: JobConfig) -> JobConfig:
        """The config of a learner for one of several ranks. Args: whole: for all of them; cfg: of the run, for this rank."""
        problems = list(split_problems(whole, n_rank))
        if problems:
            raise ConfigError([f'agents, policy {name!r}: {problem}' for problem in problems])
        local = whole.to_dict()
        split_sizes(local, n_rank)
        local['policy']['device'] = cfg.policy.device
        split = frozen_config(local)
        sections: dict[str, Any] = {'policy': split.policy, 'buffer': split.buffer, 'seed': whole.seed}
        return cfg.model_copy(update=sections)

    def _config_of(self, cfg: JobConfig, name: str) -> JobConfig:
        """The config of the learner of a policy: the section policy with what differs, for the rows of its agents."""
        group = self._layout.group(name)
        differs = cfg.agents.policies.get(name) or {}
        if isinstance(differs, str):
            differs = {'type': differs}
        kind = differs.get('type', cfg.policy.type)
        types = [*POLICY_REGISTRY.names(), *BUILT_IN, FUNCTION, SAVED]
        if kind not in types:
            raise ConfigError(unknown_name(f'type of agents.policies.{name}', kind, types, 'there are'))
        base = plain(cfg.policy)
        base['collect'].pop('n_sample', None)
        policy = _merged(base, {key: x for key, x in differs.items() if key != 'buffer'})
        if policy['collect'].get('n_step') != cfg.policy.collect.n_step:
            raise ConfigError(
                f'agents.policies.{name}.collect.n_step is {policy["collect"].get("n_step")} but policy.collect.n_step is '
                f'{cfg.policy.collect.n_step}, and all policies act in the same rollouts; set it there.'
            )
        model = policy.get('model')
        if self._layout.state_space is None and isinstance(model, dict) and STATE in (model.get('critic_obs') or ()):
            raise ConfigError(
                f'policy.model.critic_obs of policy {name!r} has {STATE!r} but agents.state is off, so that no observation has this '
                'entry; set agents.state=env, or concat.'
            )
        if self._layout.state_space is not None and isinstance(model, dict) and model.get('actor_obs') is None:
            model['actor_obs'] = entries_of_actors(group.obs_space)
        env = plain(cfg.env) | {
            'collector_env_num': cfg.env.collector_env_num * len(group.slots),
            'collector_group_num': None,
        }
        data: dict[str, Any] = {'env': env, 'policy': policy, 'max_env_step': cfg.max_env_step * len(group.slots)}
        if 'buffer' in differs:
            data['buffer'] = differs['buffer']
        elif policy['type'] == cfg.policy.type:
            data['buffer'] = plain(cfg.buffer)
        try:
            resolved = frozen_config(resolve_config(_with_schedules(data, cfg.max_env_step)))
        except ConfigError as error:
            raise ConfigError([f'agents, policy {name!r}: {problem}' for problem in error.problems]) from error
        sections: dict[str, Any] = {'policy': resolved.policy, 'buffer': resolved.buffer}
        if self._learner_of[name] == SINGLE:
            return cfg.model_copy(update=sections)
        return config_of_learner(cfg, name, **sections)

    def learns(self, name: str) -> bool:
        return self._policy_of[name] in self._trained

    def spaces(self, name: str, env: AnyVectorEnv) -> tuple[Space, Space]:
        group = self._layout.group(self._policy_of[name])
        return group.obs_space, group.action_space

    def env(self, section: EnvConfig) -> EnvConfig:
        return table_section(section, self._layout)

    def check_env(self, section: EnvConfig, before_run: bool = False) -> None:
        check_agents(section, before_run=before_run)

    def check_evaluation_env(self, policies: Mapping[str, Policy], env: AnyVectorEnv, where: str) -> None:
        wanted = [_leaves(space) for space in self._layout.table_spaces()]
        if wanted != [_leaves(env.obs_space), _leaves(env.action_space)]:
            raise UserError(
                f'{where}: its agents have other spaces than those of the training envs; use an env with the same'
            )

    def collector(
        self, envs: Sequence[AnyVectorEnv], modes: Mapping[str, CollectMode], infos: InfoKeys, first: int
    ) -> Collector:
        return AgentCollector(
            self._layout,
            envs,
            self._collect_modes(modes),
            self._learner_of,
            self._trained,
            infos,
            first,
            counts_agents=self._counts_agents,
            marks_all=self._is_rank(envs),
        )

    def joining_collector(
        self, source: Collector, envs: Sequence[Any], modes: Mapping[str, CollectMode], first: int
    ) -> Collector:
        return JoiningAgentCollector(
            source,
            self._layout,
            envs,
            self._collect_modes(modes),
            self._learner_of,
            self._trained,
            first,
            counts_agents=self._counts_agents,
            marks_all=self._is_rank(envs),
        )

    def why_not_runners(self, n_learner: int) -> str:
        return ''

    def _is_rank(self, envs: Sequence[AnyVectorEnv]) -> bool:
        """Whether a process that has these envs is one of several ranks."""
        return sum(env.n_env for env in envs) < self._cfg.env.collector_env_num

    def _collect_modes(self, modes: Mapping[str, CollectMode]) -> dict[str, CollectMode]:
        """The modes of all policies, by their names in the layout. Args: modes: by learner."""
        by_policy = {self._policy_of[learner]: mode for learner, mode in modes.items()}
        n_step = next(iter(modes.values())).n_step
        for name, actor in self._actors.items():
            width = sum(action_width(leaf) for _, leaf in leaf_spaces(self._layout.group(name).action_space))
            by_policy[name] = as_collect_mode(actor, name, self._cfg.seed, n_step, width)
        return {name: by_policy[name] for name in self._layout.policies}

    def evaluator(
        self,
        env: AnyVectorEnv,
        modes: Mapping[str, EvalMode],
        n_episode: int,
        max_episode_steps: int | None,
        deterministic: bool,
        infos: InfoKeys,
    ) -> Evaluator:
        layout = self._evaluation_layout()
        own_modes = {self._policy_of[learner]: mode for learner, mode in modes.items()}
        all_modes, drawing = modes_of(layout, own_modes, self._actors)
        return AgentEvaluator(
            layout,
            env,
            all_modes,
            n_episode,
            max_episode_steps,
            drawing=drawing,
            deterministic=deterministic,
            infos=infos,
        )

    def _evaluation_layout(self) -> Layout:
        """The rows of the evaluation envs."""
        return self._layout

    def player(self, policies: Mapping[str, Policy]) -> Player:
        by_policy = {self._policy_of[learner]: policy for learner, policy in policies.items()}
        return AgentsPlayer(by_policy, self._cfg.agents)


def _leaves(space: Space) -> dict[str, str]:
    """The leaves of a space in words, without bounds."""
    return {name: f'{type(leaf).__name__} {leaf.shape}' for name, leaf in leaf_spaces(space)}


def _with_schedules(data: dict[str, Any], max_env_step: int) -> dict[str, Any]:
    """The config of a learner whose schedules have their lengths: that of the run, counted in steps of its envs."""
    schema = job_schema(data)
    complete = plain(validate(schema, data, known=[path for path, _ in fields_of(schema)]))
    fill_schedules(complete | {'max_env_step': max_env_step})
    return complete


def _merged(base: dict[str, Any], differs: Mapping[str, Any]) -> dict[str, Any]:
    """A section policy with what differs. Of another type it takes only what does not depend on the type."""
    kind = differs.get('type', base['type'])
    policy_type = POLICY_REGISTRY.get(kind)
    if kind != base['type']:
        general: dict[str, Any] = {key: base[key] for key in ('eval', 'device', 'n_thread') if key in base}
        base = general | {'type': kind, 'collect': {'n_step': base['collect'].get('n_step')}}
        if policy_type.default_model() is None:
            base.pop('model', None)
    return _deep(base, differs)


def _deep(base: Mapping[str, Any], differs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, x in differs.items():
        inner = merged.get(key)
        if isinstance(x, Mapping) and isinstance(inner, dict) and x.get('type', inner.get('type')) == inner.get('type'):
            merged[key] = _deep(inner, x)
        else:
            merged[key] = x
    return merged
