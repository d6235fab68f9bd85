"""Evaluation envs that differ from the training envs, and the forms of env that `evaluate` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.envs import LimitEnv, limit_env
from tests.policy_envs import differing as differing_state, job_config, make_policy
from tests.worker.counting_envs import counting_env
from tests.worker.info_envs import InfoEnv
from zoo import ConfigError, evaluate, load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.env import EnvConfig, make_vector_env
from zoo.policy.base import Policy
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint
from zoo.run.config import resolve_config, resolve_policy
from zoo.run.policy_file import env_config_of
from zoo.worker.evaluation_env import differing, evaluation_env

LIMIT = 'tests.envs:limit_env'


@pytest.fixture(name='policy')
def make_limit_policy() -> Policy:
    vector = make_vector_env(EnvConfig(id=LIMIT), 1)
    return make_policy(vector.obs_space, vector.action_space, enable_field=['eval'], device='cpu')


def last_row(run_dir: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run_dir / 'metrics.jsonl').read_text().splitlines()]
    return next(row for row in reversed(lines) if 'eval/return_mean' in row)


class OldEnv:
    """An env with the interface of old gym: reset returns the observation alone, step returns four values."""

    observation_space, action_space = LimitEnv().observation_space, LimitEnv().action_space
    n_close = 0

    def __init__(self) -> None:
        self._env = LimitEnv()

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs, reward, terminated or truncated, info

    def seed(self, seed: int | None = None) -> list[Any]:
        return [seed]

    def close(self) -> None:
        type(self).n_close += 1


@pytest.mark.parametrize(
    'env',
    [
        dict(id=LIMIT),
        EnvConfig(id=LIMIT),
        LIMIT,
        limit_env,
        LimitEnv,
        LimitEnv(),
        gymnasium.wrappers.TimeLimit(LimitEnv(), 5),
        OldEnv(),
        gymnasium.vector.SyncVectorEnv([limit_env] * 3),
        make_vector_env(EnvConfig(id=LIMIT), 2),
    ],
    ids=['dict', 'EnvConfig', 'id', 'function', 'class', 'env', 'wrapped', 'old gym', 'vector', "zoo's vector"],
)
def test_evaluate_takes_any_form_of_env(env: Any, policy: Policy) -> None:
    assert evaluate(policy, env, 5).returns == [5.0] * 5


def test_an_env_that_was_given_stays_open(policy: Policy) -> None:
    class Closing(LimitEnv):
        n_close = 0

        def close(self) -> None:
            Closing.n_close += 1

    env, vector = Closing(), gymnasium.vector.SyncVectorEnv([Closing, Closing])
    made = Closing.n_close  # SyncVectorEnv closes none
    assert evaluate(policy, env, 2) == evaluate(policy, env, 2)  # seeded by `seed` both times
    assert evaluate(policy, vector, 4).returns == [5.0] * 4
    assert evaluate(policy, OldEnv(), 2).returns == [5.0] * 2
    assert Closing.n_close == made and OldEnv.n_close == 0
    vector.step(vector.action_space.sample())


def test_the_numbers_of_an_env_that_was_given_are_kept(policy: Policy) -> None:
    assert evaluate(policy, InfoEnv(), 4).infos['steps'] == [5.0] * 4


@pytest.mark.parametrize('env', [3, None, ['CartPole-v1']])
def test_what_is_no_env_is_refused(env: Any, policy: Policy) -> None:
    with pytest.raises(UserError, match=r'env is .* but must be a section env .*, an id, a callable'):
        evaluate(policy, env, 2)


def test_an_env_of_other_spaces_is_refused(policy: Policy) -> None:
    with pytest.raises(UserError, match=r'takes Box \(1,\) and gives Discrete 2 but env .*CartPole.* has Box \(4,\)'):
        evaluate(policy, gymnasium.make('CartPole-v1'), 2)


@pytest.mark.slow
@pytest.mark.parametrize('given', ['id', 'dict', 'env'])
def test_actions_are_mapped_as_in_training(given: str) -> None:
    """The policy knows that its actions are rescaled, [-1, 1] to torques of +-2; the given env does not say so."""
    vector = make_vector_env(EnvConfig(id='Pendulum-v1'), 1)
    cfg = resolve_policy({'type': 'ppo', 'model': {'hidden_sizes': [8, 8]}, 'device': 'cpu'})
    make = POLICY_REGISTRY.get('ppo')
    policies = [make(cfg, vector.obs_space, vector.action_space, action_mode=mode) for mode in ('clip', 'rescale')]
    env: Any = {'id': 'Pendulum-v1', 'dict': {'id': 'Pendulum-v1'}, 'env': gymnasium.make('Pendulum-v1')}[given]
    clip, rescale = (evaluate(policy, env, 1).returns for policy in policies)
    wanted = evaluate(policies[1], EnvConfig(id='Pendulum-v1', action_mode='rescale'), 1).returns
    assert clip != rescale and (given == 'env' or rescale == wanted)


ENV = dict(id='a:b', game=None, kwargs={'x': 1, 'y': 2}, window=3, schedule={'wind': 1.0}, reset_options={'goal': 2.0})
OTHER = {**ENV, 'id': 'c:d', 'kwargs': {}, 'schedule': {}, 'reset_options': {}}
OWN = {'kwargs': {'z': 1}, 'schedule': {'ice': 1.0}, 'reset_options': 'mine:options'}


@pytest.mark.parametrize(
    ('env', 'given', 'want'),
    [
        # kwargs of the same env are merged; another env has its own kwargs, schedule and reset options, or none
        (ENV, {'window': 4}, {**ENV, 'window': 4}),
        (ENV, {'kwargs': {'y': 5}}, {**ENV, 'kwargs': {'x': 1, 'y': 5}}),
        (ENV, {'id': 'c:d'}, OTHER),
        (ENV, {'id': 'c:d', **OWN}, {**OTHER, **OWN}),
        ({**ENV, 'game': 'pong'}, {'id': 'c:d'}, OTHER),
    ],
)
def test_what_differs_is_merged_into_the_training_env(
    env: dict[str, Any], given: dict[str, Any], want: dict[str, Any]
) -> None:
    assert differing(env, given) == want


@pytest.mark.parametrize(
    ('name', 'n'), [('there/my.py:Env', 3), ('my.py:Env', 3), ('there/my.py:Other', None), ('there/other.py:Env', None)]
)
def test_kwargs_stay_where_only_the_place_of_the_env_file_changes(name: str, n: int | None) -> None:
    found = evaluation_env({'env': dict(id='/here/my.py:Env', kwargs={'n': 3})}, [f'env.id={name}'])
    assert (
        found.kwargs.get('n') == n
        and found.id == str(Path(name.partition(':')[0]).absolute()) + ':' + name.partition(':')[2]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ('overrides', 'want'),
    [
        (
            ['env.reset_options.low=-1', 'env.reset_options.high=1'],
            {'reset_options': {'low': -1, 'high': 1, 'goal': 2}},
        ),
        (['env.schedule.wind.end=3'], {'schedule': {'wind': {'start': 0, 'end': 3, 'over': 9}, 'ice': 1}}),
        (['env.kwargs.size.x=5'], {'kwargs': {'size': {'x': 5, 'y': 2}, 'n': 3}}),
        (['env.reset_options={low: -1}'], {'reset_options': {'low': -1}}),
        # the order of overrides does not matter: a key of the new env is not dropped with the keys of the training env
        (['env.kwargs.n=4', 'env.id=c:d'], {'id': 'c:d', 'kwargs': {'n': 4}, 'schedule': {}, 'reset_options': {}}),
        (['env.game=Pong', 'env.id=atari'], {'id': 'atari', 'game': 'Pong', 'kwargs': {}}),
    ],
)
def test_an_override_sets_its_own_key_alone(overrides: list[str], want: dict[str, Any]) -> None:
    schedule = {'wind': {'start': 0, 'end': 1, 'over': 9}, 'ice': 1}
    env = dict(id='a:b', kwargs={'size': {'x': 1, 'y': 2}, 'n': 3}, schedule=schedule, reset_options={'goal': 2})
    found = evaluation_env({'env': env}, overrides)
    assert {key: getattr(found, key) for key in want} == want


def test_a_run_evaluates_on_envs_of_their_own_and_on_sets(tmp_path: Path) -> None:
    """Episodes of 5 steps in training, of 7 in the main evaluation, of 9 and 11 in the sets."""
    differs = dict(env={'kwargs': {'limit': 7}}, sets={'long': {'kwargs': {'limit': 9}}, 'far-out': {'id': limit_11}})
    cfg = job_config(tmp_path, LIMIT, policy=dict(eval=dict(eval_freq=64, n_episode=3, **differs)))
    seen: list[Any] = []
    cfg['callbacks'] = [type('Keep', (), {'on_evaluate': lambda self, job, evaluation: seen.append(evaluation)})]
    result = serial_pipeline(cfg)
    row = last_row(result.run_dir)
    assert row['eval/return_mean'] == 7 and result.best_return == 7
    assert row['eval/long/return_mean'] == 9 and row['eval/far-out/episode_len_mean'] == 11
    assert seen[0].sets['long'].returns == [9.0] * 3
    trained = json.loads((result.run_dir / 'metrics.jsonl').read_text().splitlines()[0])
    assert trained['collect/return_mean'] == 5


def limit_11() -> gymnasium.Env:
    return limit_env(11)


@pytest.mark.slow
def test_parameters_are_the_same_bits_whatever_is_evaluated_and_drawn_actions_differ(tmp_path: Path) -> None:
    """The reward is the action: greedy, always 0 or always 1 in 100 steps; drawn, evenly, as the policy is near its start."""
    drawn = dict(env={'kwargs': {'limit': 90}}, sets={'x': {}}, deterministic=False)
    greedy, other = (
        serial_pipeline(job_config(tmp_path / str(i), counting_env, policy=dict(eval=dict(eval_freq=64, **options))))
        for i, options in enumerate(({}, drawn))
    )
    assert not differing_state(greedy.policy.state_dict(), other.policy.state_dict())
    assert greedy.last_return in (0, 100) and 20 < (other.last_return or 0) < 70


@pytest.mark.slow
def test_a_resume_and_a_checkpoint_know_them(tmp_path: Path) -> None:
    sets = {'long': {'kwargs': {'limit': 9}}}
    cfg = job_config(tmp_path, LIMIT, policy=dict(eval=dict(env={'kwargs': {'limit': 7}}, sets=sets)))
    result = serial_pipeline(cfg)
    checkpoint, policy = load_checkpoint(result.run_dir), load_policy(result.run_dir)
    envs = [env_config_of(checkpoint, True, *more) for more in ((), (['env.kwargs.limit=4'],), ([], 'long'))]
    assert [evaluate(policy, env, 1).returns for env in envs] == [[7.0], [4.0], [9.0]]
    serial_pipeline(resume=result.run_dir, max_env_step=512, overrides=['policy.eval.env.kwargs.limit=8'], trust=True)
    assert last_row(result.run_dir)['eval/return_mean'] == 8


def test_files_of_evaluation_envs_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'far.py').write_text(
        'from tests.envs import limit_env\ndef make(limit=6): return limit_env(limit)\n'
    )
    monkeypatch.chdir(tmp_path / 'a')
    differs = dict(env={'id': './far.py:make'}, sets={'x': {'kwargs': {'limit': 8}}})
    result = serial_pipeline(job_config(tmp_path / 'runs', LIMIT, policy=dict(eval=differs)))
    monkeypatch.chdir(tmp_path)
    checkpoint, policy = load_checkpoint(result.run_dir), load_policy(result.run_dir)
    found = [evaluate(policy, env_config_of(checkpoint, True, [], name), 1).returns for name in (None, 'x')]
    assert found == [[6.0], [8.0]] and last_row(result.run_dir)['eval/x/return_mean'] == 8


def test_a_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    cfg = resolve_config(job_config(tmp_path, LIMIT, policy=dict(eval=dict(sets={'far': {}}))))
    with pytest.raises(ConfigError, match="no evaluation 'near' in policy.eval.sets; it has far"):
        evaluation_env(cfg, name='near')
    with pytest.raises(
        ConfigError, match=r"'policy.type=ppg' does not set a key of the env; write it as env.KEY=value"
    ):
        evaluation_env(cfg, ['policy.type=ppg'])


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (dict(env={'kwrgs': {}}), r'policy\.eval\.env\.kwrgs.*kwargs'),
        (dict(env={'window': 0}), r'policy\.eval\.env\.window is 0'),
        (dict(env={'id': 'CartPol-v1'}), r"policy\.eval\.env: unknown env 'CartPol-v1'"),
        (dict(env={'collector_env_num': 4}), r'policy\.eval\.env\.collector_env_num: .* of the training envs alone'),
        (dict(env={'action_mode': 'clip'}), r'policy\.eval\.env\.action_mode: .* that of the policy'),
        (dict(sets={'a/b': {}}), r"policy\.eval\.sets has an evaluation 'a/b'"),
        (dict(sets={'x': {'id': 'CartPol-v1'}}), r"policy\.eval\.sets\.x: unknown env 'CartPol-v1'"),
        (dict(sets={'x': 3}), r'policy\.eval\.sets is'),
    ],
)
def test_problems_are_found_before_the_run(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_config(job_config(tmp_path, 'CartPole-v1', policy=dict(eval=options)))


def test_evaluation_envs_of_other_spaces_are_refused_by_the_key_that_names_them(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, LIMIT, policy=dict(eval=dict(sets={'x': {'id': 'CartPole-v1'}})))
    with pytest.raises(UserError, match=r'policy\.eval\.sets\.x: the policy takes Box \(1,\)'):
        serial_pipeline(cfg)


def test_evaluation_envs_are_checked_too(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, LIMIT, policy=dict(eval=dict(env={'id': bad_env, 'check': True})))
    with pytest.raises(Exception, match='bad_env'):
        serial_pipeline(cfg)


def bad_env() -> gymnasium.Env:
    """The reward of a step is a text."""

    class BadEnv(LimitEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 'much', *rest

    return BadEnv()


def test_code_that_a_checkpoint_names_for_evaluation_needs_consent(tmp_path: Path) -> None:
    """Every id with a colon is code, also one like 'my-package:Env-v0', which cannot be a 'module:function'."""
    cfg = job_config(tmp_path, 'CartPole-v1', policy=dict(eval=dict(sets={'x': {}})))
    checkpoint = load_checkpoint(serial_pipeline(cfg).run_dir)
    for where in ('env', 'sets'):
        options = {'id': 'my-package:Env-v0'}
        checkpoint.meta['config']['policy']['eval'] |= {where: options if where == 'env' else {'x': options}}
        with pytest.raises(CheckpointError, match=r"names code of module 'my-package' \(policy.eval."):
            env_config_of(checkpoint)
        checkpoint.meta['config']['policy']['eval'] |= {where: {}}
