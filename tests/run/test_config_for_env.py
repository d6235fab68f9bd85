"""The config that is chosen for an env named without a config."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from threading import Event
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from tests.envs import LimitEnv, LimitVectorEnv
from tests.policy_envs import job_config
from zoo import ConfigError, Section, serial_pipeline
from zoo.config.source import load_config
from zoo.core.registry import MODEL_REGISTRY, UnknownNameError
from zoo.env.errors import EnvError, NoAnswerError
from zoo.run.config import resolve_config
from zoo.run.config_for_env import bundled_config_of, config_for_env, exp_name_of, resolve_with_agents


@pytest.mark.parametrize(
    ('env_id', 'policy', 'name'),
    [
        ('CartPole-v1', 'ppo', 'cartpole_ppo'),
        ('CartPole-v1', 'ppg', 'cartpole_ppg'),
        ('LunarLander-v3', 'ppo', 'lunarlander_ppo'),
        ('Hopper-v5', 'spo', 'hopper_spo'),
        ('Hopper-v5', 'ppg', None),
        ('Nothing-v0', 'ppo', None),
        ('atari', 'ppo', None),  # its configs are for one game each
    ],
)
def test_the_bundled_config_of_an_env_is_the_plain_one(env_id: str, policy: str, name: str | None) -> None:
    assert bundled_config_of(env_id, policy) == name


def test_a_game_of_a_family_has_its_own_config() -> None:
    assert (
        bundled_config_of('atari', 'ppo', 'pong') == 'pong_ppo' and bundled_config_of('atari', 'ppo', 'Skiing') is None
    )


def test_every_config_that_is_found_resolves_to_that_env_and_policy() -> None:
    config = config_for_env('Pendulum-v1', 'ppg')
    resolved = resolve_config(config)
    assert (resolved.env.id, resolved.policy.type) == ('Pendulum-v1', 'ppg')
    resolved = resolve_config(config_for_env('Blackjack-v1'))
    assert (resolved.env.id, resolved.policy.type, resolved.exp_name) == ('Blackjack-v1', 'ppo', 'Blackjack-v1')


def test_an_env_of_several_agents_is_looked_at_as_its_policy_sees_it() -> None:
    """Its agents observe vectors without bounds, which are normalised."""
    config = config_for_env('tests.agents.envs:Clockwork')
    assert config['policy'] == {'type': 'ppo', 'model': {'obs_norm': True}, 'learn': {'reward_norm': True}}
    assert bundled_config_of('mpe2.simple_spread_v3:parallel_env', 'ppo') == 'simple_spread_ppo'


def test_an_override_of_the_type_chooses_the_policy() -> None:
    assert config_for_env('CartPole-v1', overrides=['policy.type=ppg'])['policy']['type'] == 'ppg'
    with pytest.raises(UnknownNameError, match="did you mean 'ppg'"):
        config_for_env('CartPole-v1', 'ppgg')


@pytest.mark.parametrize(
    ('env_id', 'name'),
    [
        ('CartPole-v1', 'CartPole-v1'),
        ('my_env.py:MyEnv', 'MyEnv'),
        ('/a/b/my_env.py:make_env', 'make_env'),
        ('package.module:make', 'make'),
        ('mpe2.simple_spread_v3:parallel_env', 'simple_spread_v3'),
        ('a/my_game.py:env', 'my_game'),
        ('pettingzoo:classic/tictactoe-v3', 'tictactoe-v3'),
        ('a/b c', 'b_c'),
        ('...', 'run'),
        ('x' * 200, 'x' * 60),
    ],
)
def test_the_name_of_the_experiment_is_a_folder_name(env_id: str, name: str) -> None:
    assert exp_name_of(env_id) == name
    resolve_config({'exp_name': name, 'env': {'id': 'CartPole-v1'}})


def test_a_callable_gives_its_name() -> None:
    def make_it() -> None: ...

    assert config_for_env(make_it)['exp_name'].startswith('test_a_callable_gives_its_name')
    with pytest.raises(ConfigError):
        resolve_config({'exp_name': 'a/b', 'env': {'id': 'CartPole-v1'}})


class NormlessConfig(Section):
    """A model without obs_norm."""

    type: str = 'normless'


def test_a_model_without_normalised_observations_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = type('Normless', (), {'config': NormlessConfig})
    monkeypatch.setitem(MODEL_REGISTRY.entries, 'normless', model)
    policy = config_for_env('MountainCar-v0', overrides=['policy.model.type=normless'])['policy']
    assert policy == {'type': 'ppo', 'learn': {'reward_norm': True}}
    assert config_for_env('MountainCar-v0')['policy']['model'] == {'obs_norm': True}


IMAGE = Box(0, 255, (8, 8, 3), np.uint8)
VECTOR = Box(-1, 1, (2,), np.float32)


class SpacesEnv(LimitEnv):
    """Has given spaces and observes samples; `masks`: where its action masks are."""

    def __init__(self, obs: Any = VECTOR, actions: Any = None, masks: str = '') -> None:
        super().__init__()
        self.observation_space = obs
        self.action_space = Discrete(3) if actions is None else actions
        self.masks = masks

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return self.observed(), self.info()

    def step(self, action: Any) -> Any:
        _, *rest, _ = super().step(action)
        return self.observed(), *rest, self.info()

    def observed(self) -> Any:
        obs = self.observation_space.sample()
        if self.masks == 'obs':
            obs['action_mask'][:] = 1
        return obs

    def info(self) -> dict[str, Any]:
        return {'action_mask': np.ones(3, np.int8)} if self.masks == 'info' else {}


def lone_image() -> gymnasium.Env:
    return SpacesEnv(Dict(img=IMAGE))


def image_with_mask() -> gymnasium.Env:
    return SpacesEnv(Dict(image=IMAGE, action_mask=MultiBinary(3)), masks='obs')


def image_with_mask_in_info() -> gymnasium.Env:
    return SpacesEnv(IMAGE, masks='info')


def image_with_vector() -> gymnasium.Env:
    return SpacesEnv(Dict(image=IMAGE, vector=VECTOR))


def index_env() -> gymnasium.Env:
    return SpacesEnv(Discrete(4))


def chosen_for(make: Any, *overrides: str) -> dict[str, Any]:
    """The settings that are chosen for an env, besides its id and the type of the policy, as dotted keys."""
    config = config_for_env(make, overrides=overrides)
    sections = {'env': config['env'], 'policy.model': config['policy'].get('model', {})}
    chosen = {f'{path}.{key}': value for path, section in sections.items() for key, value in section.items()}
    return {key: value for key, value in chosen.items() if key != 'env.id'}


NORM = {'policy.model.obs_norm': True}


@pytest.mark.parametrize(
    ('make', 'overrides', 'chosen'),
    [
        (lone_image, (), {}),
        (image_with_mask, (), {}),
        (image_with_mask_in_info, (), {}),
        (index_env, (), {}),
        (lone_image, ('env.window=3',), {}),
        (image_with_vector, (), NORM),
        (image_with_vector, ('policy.model.actor_obs=[image]', 'policy.model.critic_obs=[image]'), {}),
        (image_with_mask, ('env.action_mask=off',), NORM),  # the mask is an ordinary Box then
        (lone_image, ('env.prev_reward=true',), NORM),
        (LimitVectorEnv, (), NORM),
    ],
)
def test_observations_are_normalised_where_a_network_sees_numbers_that_are_no_image(
    make: Any, overrides: tuple[str, ...], chosen: dict[str, Any]
) -> None:
    assert chosen_for(make, *overrides) == chosen


@pytest.mark.slow(first=True)
@pytest.mark.parametrize('make', [lone_image, image_with_mask, image_with_mask_in_info])
def test_env_with_a_lone_image_trains_with_what_is_chosen_for_it(make: Any, tmp_path: Any) -> None:
    chosen = config_for_env(make)
    config = job_config(tmp_path, make, max_env_step=64, policy=chosen['policy'])
    assert serial_pipeline(config).train_iter > 0


def far_env(low: float = 0, high: float = 512) -> gymnasium.Env:
    return SpacesEnv(actions=Box(low, high, (1,), np.float32))


def far_hybrid() -> gymnasium.Env:
    return SpacesEnv(actions=Tuple((Discrete(2), Box(0, 720, (2,), np.float32))))


def open_env() -> gymnasium.Env:
    return far_env(300, np.inf)


def near_env() -> gymnasium.Env:
    return far_env(-2, 2)


def far_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    vector = LimitVectorEnv(num_envs, action='box')
    vector.single_action_space = Box(0, 512, (1,), np.float32)
    vector.action_space = gymnasium.vector.utils.batch_space(vector.single_action_space, num_envs)
    return vector


RESCALED = {**NORM, 'env.action_mode': 'rescale'}


@pytest.mark.parametrize(
    ('make', 'overrides', 'chosen'),
    [
        (far_env, (), RESCALED),
        (far_hybrid, (), RESCALED),
        (far_vector, (), RESCALED),
        (near_env, (), NORM),
        (open_env, (), NORM),  # no mode maps -1 to 1 to infinity
        (near_env, ('env.id=tests.run.test_config_for_env:far_env',), RESCALED),
        (far_env, ('env.kwargs.low=-1', 'env.kwargs.high=1'), NORM),
        (far_env, ('env.action_mode=clip',), NORM),
        (far_env, ('env.action_bins=3',), NORM),
        (far_env, ('policy.model.distribution=beta',), NORM),  # it begins inside the bounds, and refuses rescale
        (far_env, ('policy.model.distribution=gsde',), RESCALED),
    ],
)
def test_far_actions_are_rescaled_where_the_user_says_nothing_else(
    make: Any, overrides: tuple[str, ...], chosen: dict[str, Any]
) -> None:
    assert chosen_for(make, *overrides) == chosen


def test_what_is_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        config_for_env('tests.run.test_config_for_env:far_env')
    assert caplog.messages == [
        'no bundled config is for tests.run.test_config_for_env:far_env and ppo: training with the defaults and '
        'policy.model.obs_norm=true and policy.learn.reward_norm=true and env.action_mode=rescale'
    ]


def test_a_section_env_is_looked_at_with_its_own_settings() -> None:
    near = {'id': far_env, 'kwargs': {'low': -1, 'high': 1}}
    assert 'action_mode' not in config_for_env(near)['env']
    assert 'action_mode' not in config_for_env({'id': far_env, 'action_mode': 'clip'})['env']
    assert config_for_env({'id': far_env})['env']['action_mode'] == 'rescale'


class FaultyEnv(LimitEnv):
    """Ends the process, or waits for ever, in its constructor or in close."""

    def __init__(self, call: str, how: str) -> None:
        super().__init__()
        self._call, self._how = call, how
        self._fail_in('constructor')

    def close(self) -> None:
        self._fail_in('close')

    def _fail_in(self, call: str) -> None:
        if call != self._call:
            return
        if self._how == 'hang':
            Event().wait(3600)
        raise CancelledError if self._how == 'cancel' else SystemExit(3)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('how', ['exit', 'cancel', 'hang'])
def test_env_whose_close_fails_is_looked_at_all_the_same(how: str) -> None:
    env = {'id': FaultyEnv, 'kwargs': {'call': 'close', 'how': how}, 'step_timeout': 0.1}
    assert config_for_env(env)['policy']['model'] == {'obs_norm': True}


@pytest.mark.parametrize('how', ['exit', 'cancel'])
def test_env_that_cannot_be_made_gets_a_config_for_the_run_that_names_its_error(how: str) -> None:
    env = {'id': FaultyEnv, 'kwargs': {'call': 'constructor', 'how': how}}
    assert config_for_env(env)['policy'] == {'type': 'ppo'}
    with pytest.raises(EnvError, match='while it was made: its code raised (SystemExit: 3|CancelledError) at '):
        serial_pipeline(env=env)


@pytest.mark.long
@pytest.mark.slow(first=True)
def test_constructor_that_hangs_is_named_within_ten_times_step_timeout() -> None:
    env = {'id': FaultyEnv, 'kwargs': {'call': 'constructor', 'how': 'hang'}, 'step_timeout': 0.1}
    with pytest.raises(
        NoAnswerError, match=r"FaultyEnv', while it was made: no answer within 1 s, at .*raise env.step_"
    ):
        config_for_env(env)


@pytest.mark.slow
def test_env_that_ends_the_process_in_close_trains(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = {'id': FaultyEnv, 'kwargs': {'call': 'close', 'how': 'exit'}, 'collector_env_num': 2, 'evaluator_env_num': 2}
    result = serial_pipeline(job_config(tmp_path, FaultyEnv, env=env, max_env_step=64))
    assert result.last_return == 5.0
    # one line of evaluation and one of training, each of two envs
    assert len([text for text in caplog.messages if 'index 0 and 1 more: close raised SystemExit: 3' in text]) == 2


def test_an_id_of_ale_py_is_answered_with_the_family(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip('ale_py')
    with caplog.at_level(logging.INFO):
        config_for_env('ale_py:ALE/MsPacman-v5')
        config_for_env('ale_py:ALE/MsPacman-v5', overrides=['env.kwargs.obs_type=ram'])
    assert [text for text in caplog.messages if 'env.id=atari env.game=MsPacman' in text] == caplog.messages[1:2]


def of_agents(env: str, batch_size: int) -> dict[str, Any]:
    """16 steps of 2 copies: 32 rows of one agent, 96 of three."""
    return dict(
        env=dict(id=env, collector_env_num=2),
        policy=dict(type='ppo', collect=dict(n_step=16), learn=dict(batch_size=batch_size)),
        max_env_step=64,
    )


def test_rollout_of_an_env_of_several_agents_has_their_rows_without_a_section_agents() -> None:
    config = resolve_with_agents(of_agents('tests.agents.envs:Clockwork', 96))
    assert config.policy.learn.batch_size == 96 and config.agents.policies == {'shared': {}}
    assert resolve_with_agents(of_agents('tests.agents.envs:Clockwork', 16)).agents.policies == {}


@pytest.mark.parametrize(
    'config',
    [
        of_agents('CartPole-v1', 96),
        of_agents('no_such_module:Env', 96),
        of_agents('tests.agents.envs:Clockwork', -1),
    ],
)
def test_other_problems_stay_what_they_are(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as plain:
        resolve_config(config)
    with pytest.raises(ConfigError) as found:
        resolve_with_agents(config)
    assert str(found.value) == str(plain.value)


def test_policy_that_is_to_play_against_itself_gets_no_config_with_other_opponents():
    env = 'pettingzoo:classic/tictactoe-v3'
    assert bundled_config_of(env, 'ppo') == 'tictactoe_ppo'  # against random play
    name = bundled_config_of(env, 'ppo', plays_itself=True)
    if name is not None:
        assert load_config(name)[0]['agents']['self_play'] is not None
    pytest.importorskip('pettingzoo', reason='the extra agents')
    config = config_for_env(env, overrides=['agents.self_play={}'])
    assert 'policies' not in config.get('agents', {})


class UnitsEnv(gymnasium.Env):
    """Shows a number of units that changes."""

    observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return (), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (), 0.0, True, False, {}


def test_sets_of_entities_get_no_statistics_of_places() -> None:
    wrappers = [{'type': 'zoo.env.padded_sets:PaddedSets', 'n_max': 3}]
    config = config_for_env({'id': UnitsEnv, 'wrappers': wrappers})
    assert config['policy'] == {'type': 'ppo', 'learn': {'reward_norm': True}}
