"""The user's own vector envs: callables that make a gymnasium.vector.VectorEnv, and vector envs that exist already."""

from __future__ import annotations

import inspect
import pickle
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.utils import CloudpickleWrapper

from zoo.core.errors import show_error
from zoo.env.adapter import check_limits, creator_of, takes_keyword, takes_optional_seed
from zoo.env.errors import EnvKwargsError, SeveralAgentsError, UnsupportedEnvError
from zoo.env.families.family import EnvRequest, OwnVector

VectorEnv = gymnasium.vector.VectorEnv
LIST_WORDS = ('list', 'sequence', 'iterable', 'tuple', 'ndarray')
MAKE_DO = 'give a function of num_envs that makes one, env.id=lambda num_envs: ...'


class GivenVectorEnv:
    """An existing vector env that was given as env.id: training uses the env itself, everything else uses copies.

    It has the __module__ and __qualname__ of the env's class, by which checkpoints and messages name it.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.__module__ = type(env).__module__
        self.__qualname__ = type(env).__qualname__
        self._is_taken = False

    def __call__(self, request: EnvRequest) -> VectorEnv:
        """Returns the env or a copy. Raises: UnsupportedEnvError if no copy can be made, or for a step limit or other n_env."""
        if request.max_episode_steps is not None:
            raise UnsupportedEnvError(
                f'env.max_episode_steps is {request.max_episode_steps} but env.id is a vector env that exists already; set '
                'the limit where it is made.'
            )
        if request.training and self.env.num_envs != request.n_env:
            raise UnsupportedEnvError(
                f'env {request.name!r}: the vector env given has {self.env.num_envs} envs but the config asks for '
                f'{request.n_env} in a group; leave out env.collector_env_num and env.collector_group_num.'
            )
        if request.training and not self._is_taken:
            self._is_taken = True
            return self.env
        if request.training:
            raise UnsupportedEnvError(
                f'env {request.name!r} is one vector env, which an earlier run has trained on and closed; give each '
                f'run a vector env of its own, or {MAKE_DO}.'
            )
        try:
            # not deepcopy, which copies handles of pipes too: the end of the copy would close these pipes
            return pickle.loads(pickle.dumps(CloudpickleWrapper(self.env))).fn  # type: ignore[arg-type]  # made for functions
        except Exception as error:  # its parts may raise any exception
            raise UnsupportedEnvError(
                f'env {request.name!r} is one vector env, of which evaluation needs a copy, and it cannot be copied '
                f'({show_error(error)}); {MAKE_DO}.'
            ) from error


def own_vector(source: EnvSpec | Callable[..., Any]) -> OwnVector | None:
    """The family of a source that makes only whole vector envs; None for a source of single envs, or of both.

    A callable makes vectors if it is a subclass of VectorEnv, is annotated to return one, or has an argument num_envs.
    """
    if isinstance(source, EnvSpec):
        if source.entry_point is not None or source.vector_entry_point is None:
            return None
        limit: dict[str, Any] = {}
        if source.max_episode_steps is not None:
            limit['max_episode_steps'] = source.max_episode_steps
        make = partial(gymnasium.make_vec, source, vectorization_mode='vector_entry_point', **limit)
        return OwnVector(_maker(make), maker=creator_of(source.vector_entry_point))
    if isinstance(source, GivenVectorEnv):
        return OwnVector(source, is_given=True)
    if _makes_vectors(source):
        return OwnVector(_maker(source), maker=source)
    return None


def has_several_agents(env: object) -> bool:
    """Whether an env is one of several agents: of PettingZoo's interfaces, a game of OpenSpiel, or one that counts its agents."""
    if hasattr(env, 'possible_agents') or (hasattr(env, 'agent_iter') and hasattr(env, 'last')):
        return True
    if hasattr(env, 'agents') and callable(getattr(env, 'observation_space', None)):
        return True
    if hasattr(env, 'new_initial_state') and hasattr(env, 'num_players'):
        return True
    return isinstance(env, gymnasium.Env) and counts_agents(env)


def counts_agents(env: gymnasium.Env) -> bool:
    """Whether an env of gymnasium has several agents: Tuples of spaces, as many as it says it has agents."""
    tuples = gymnasium.spaces.Tuple
    if not isinstance(env.action_space, tuples) or not isinstance(env.observation_space, tuples):
        return False
    n = len(env.action_space.spaces)
    own = env.unwrapped
    counts = [getattr(own, name, None) for name in ('n_agents', 'num_agents')]
    return n == len(env.observation_space.spaces) and n in counts


def check_one_vector(env: object, name: str) -> None:
    """Refuses vector and multi-agent envs, of any library, in place of a single env. Raises: UnsupportedEnvError."""
    kind = type(getattr(env, 'unwrapped', env)).__name__
    if isinstance(env, VectorEnv):
        raise UnsupportedEnvError(
            f'env {name!r}: what was made is a vector of {env.num_envs} envs ({kind}), and zoo cannot tell its maker how '
            f'many it needs; give that an argument num_envs, as in `def make(num_envs, ...)`.'
        )
    if has_several_agents(env):
        raise SeveralAgentsError(
            f'env {name!r}: {kind} is an env of several agents, and this takes one of a single agent; train in it by '
            '`zoo train` or serial_pipeline, whose section agents says which policies act (docs/agents.md).'
        )
    if hasattr(env, 'num_envs') and hasattr(env, 'step_wait') and hasattr(env, 'step_async'):
        raise UnsupportedEnvError(
            f'env {name!r}: {kind} is a vector env of another library (as of stable-baselines3); give what makes one '
            'single env, and env.collector_env_num.'
        )


def takes_one_seed(env: VectorEnv) -> bool:
    """Whether the reset of a vector env takes one int as its seed, and not a list with one seed for each env.

    The annotation of `seed` tells it; if there is none, a reset with a list is tried.
    """
    parameters = inspect.signature(env.unwrapped.reset).parameters
    if 'seed' in parameters and parameters['seed'].annotation is not inspect.Parameter.empty:
        annotation = str(parameters['seed'].annotation).lower()
        return not any(word in annotation for word in LIST_WORDS)
    try:
        env.reset(seed=list(range(env.num_envs)))  # type: ignore[arg-type]  # a trial
    except (TypeError, ValueError, gymnasium.error.Error):
        return True
    return False


def _makes_vectors(source: Callable[..., Any]) -> bool:
    if isinstance(source, type) and issubclass(source, gymnasium.Env | VectorEnv):
        return issubclass(source, VectorEnv)
    kind = _annotated_result(source)
    if isinstance(kind, type) and issubclass(kind, gymnasium.Env | VectorEnv):
        return issubclass(kind, VectorEnv)
    try:
        return 'num_envs' in inspect.signature(source).parameters
    except (TypeError, ValueError):  # of a callable in C
        return False


def _annotated_result(source: Callable[..., Any]) -> object:
    """The annotation of what a callable returns; None if it has none that can be read."""
    function: Any = source
    if isinstance(source, partial):
        function = source.func
    if not (inspect.isroutine(function) or isinstance(function, type)):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function).get('return')
    except (NameError, TypeError, AttributeError):
        return None


def _maker(source: Callable[..., Any]) -> Callable[..., VectorEnv]:
    """Makes the `make` function of a family from `source`, which it asks for request.n_env envs."""

    def make(request: EnvRequest, **kwargs: Any) -> VectorEnv:
        if 'num_envs' in kwargs:
            raise EnvKwargsError(
                "env.kwargs has 'num_envs', which the config gives by env.collector_env_num and env.evaluator_env_num; "
                'leave it out.'
            )
        arguments: dict[str, Any] = {'num_envs': request.n_env, **kwargs}
        limit = request.max_episode_steps
        check_limits(source, request.n_env, limit, request.training, request.name)
        if limit is not None and not takes_keyword(source, 'max_episode_steps'):
            raise UnsupportedEnvError(
                f'env.max_episode_steps is {limit} but {request.name!r} makes whole vectors and has no argument '
                'max_episode_steps; give it one, or leave env.max_episode_steps out.'
            )
        if limit is not None:
            arguments['max_episode_steps'] = limit
        if 'seed' not in kwargs and takes_optional_seed(source):
            arguments['seed'] = request.seed
        env = source(**arguments)
        if not isinstance(env, VectorEnv):
            raise UnsupportedEnvError(
                f'env {request.name!r} was asked for num_envs={request.n_env} and returned a '
                f'{type(env).__name__}, wanted a gymnasium.vector.VectorEnv; return one, or leave the argument num_envs '
                'out if it makes a single env.'
            )
        try:
            check_limits(env, request.n_env, limit, request.training, request.name)
        except UnsupportedEnvError:
            env.close()
            raise
        return env

    return make
