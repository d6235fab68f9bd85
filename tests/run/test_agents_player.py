"""Policies of several agents that play together: of runs, from files, with other opponents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.forked import run_python
from tests.policy_envs import job_config
from zoo import evaluate, load_policies, load_policy, serial_pipeline
from zoo.agents.config import AgentsConfig
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.run.agents_player import Opponents, player_of_policies
from zoo.run.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[2]
ENV = 'tests.agents.envs:Clockwork'
# in step t an agent that acts earns 2 ** (3 * t + index): a acts in 0, 1; b in 0 to 3; c in 2 to 4
OF_A = 1 + 8
OF_B = 2 + 16 + 128 + 1_024
OF_C = 256 + 2_048 + 16_384
RETURNS = {'a': OF_A, 'b': OF_B, 'c': OF_C}


def config_of(root, **agents):
    return job_config(
        root,
        'CartPole-v1',
        max_env_step=32,
        env=dict(id=ENV, collector_env_num=2, evaluator_env_num=2, vectorization='sync'),
        policy=dict(type='ppo', collect=dict(n_step=16), learn=dict(batch_size=16), eval=dict(n_episode=2)),
        agents=agents,
    )


def trained(root, **agents):
    return serial_pipeline(config_of(root, **agents))


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    return trained(tmp_path_factory.mktemp('shared'))


@pytest.fixture(scope='module')
def two(tmp_path_factory):
    return trained(tmp_path_factory.mktemp('two'), policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'})


def test_one_policy_of_all_agents_is_evaluated_in_an_env_of_several(shared):
    evaluation = evaluate(load_policy(shared.run_dir), ENV, 3)
    assert evaluation.agents == {name: [x] * 3 for name, x in RETURNS.items()}
    assert evaluation.returns == pytest.approx([(OF_A + OF_B + OF_C) / 3] * 3)
    assert evaluation.rows()[0]['agent/c'] == OF_C


def test_policies_of_a_run_are_evaluated_together(two):
    policies = load_policies(two.run_dir)
    assert list(policies) == ['p', 'q']
    for given in (policies, two.policies):
        evaluation = evaluate(given, ENV, 2)
        assert {name: part.returns for name, part in evaluation.learners.items()} == {
            'p': [OF_A] * 2,
            'q': [(OF_B + OF_C) / 2] * 2,
        }


def test_load_policy_by_name_gives_the_parameters_of_that_policy(two):
    for name, policy in two.policies.items():
        loaded = load_policy(two.run_dir, policy=name).state_dict()['model']
        assert all(torch.equal(x, loaded[key]) for key, x in policy.state_dict()['model'].items())
    with pytest.raises(UserError, match=r"has no policy 'pp': it has p, q; did you mean 'p'"):
        load_policy(two.run_dir, policy='pp')


def test_load_policy_by_name_of_a_run_with_one_policy(shared):
    assert load_policy(shared.run_dir, policy='shared').obs_space == shared.policy.obs_space
    with pytest.raises(UserError, match="has no policy 'p': its only one has no name: leave policy out"):
        load_policy(shared.run_dir, policy='p')


def test_all_policies_must_be_given(two):
    with pytest.raises(UserError, match='the policies p were given but the section agents has p, q'):
        evaluate({'p': two.policies['p']}, ENV)


def test_policies_of_other_spaces_are_refused(two):
    swapped = {'p': two.policies['q'], 'q': two.policies['p']}
    with pytest.raises(UserError, match=r"policy 'p' takes observations .* but those of a in "):
        evaluate(swapped, ENV)


def test_other_opponent_takes_agents_of_a_shared_policy(shared):
    player = player_of_policies({'': shared.policy}, ['agents.mapping.b=random', 'agents.score=b'])
    evaluation = evaluate(player, ENV, 2)
    assert {name: part.returns for name, part in evaluation.learners.items()} == {
        'shared': [(OF_A + OF_C) / 2] * 2,
        'random': [OF_B] * 2,
    }
    assert evaluation.returns == [OF_B] * 2


AB = AgentsConfig(policies={'p': {}, 'q': {}}, mapping={'a': 'p', '*': 'q'}, train=['p'], score='p')
NAMES = ('a', 'b', 'c')


@pytest.mark.parametrize(
    ('overrides', 'mapping'),
    [
        (['agents.mapping={a: q, b: p}'], {'a': 'q', 'b': 'p', 'c': 'q'}),
        (['agents.mapping.*=p', 'agents.mapping.b=random'], {'a': 'p', 'b': 'random', 'c': 'p'}),
        (['agents.policies.q=random'], {'a': 'p', 'b': 'q', 'c': 'q'}),
        (['agents.policies.bot.type=random', 'agents.mapping.c=bot'], {'a': 'p', 'b': 'q', 'c': 'bot'}),
    ],
)
def test_patterns_of_an_evaluation_come_first(overrides, mapping):
    assert Opponents(AB, overrides).in_env(NAMES).mapping == mapping


def test_policies_named_as_agents_keep_them_where_another_gets_an_opponent():
    agents = Opponents(AgentsConfig(policies={name: {} for name in NAMES}), ['agents.mapping.b=random']).in_env(NAMES)
    assert agents.mapping == {'a': 'a', 'b': 'random', 'c': 'c'}


def test_score_and_train_of_policies_that_have_no_agent_are_dropped():
    agents = Opponents(AB, ['agents.mapping.a=random']).in_env(NAMES)
    assert (list(agents.policies), agents.train, agents.score) == (['q', 'random'], None, None)


@pytest.mark.parametrize(
    ('overrides', 'sentence'),
    [
        (['agents.id=on'], 'agents.id is what the policies were trained with'),
        (['agents.mapping.a=r'], "the policy 'r', which agents.policies lacks; the policies are p, q, random"),
        (['agents.mapping.d=p'], "'d', which fits none of the agents a, b, c"),
        (['agents.mapping.*=random'], 'agents.mapping gives no agent to p, q'),
        (['agents.mapping=[a]'], r"agents.mapping is '\[a\]' but must be a dict, .*as agents.mapping.player_1=bot"),
        (['agents.policies.bot=random'], 'agents.policies.bot is given but agents.mapping gives it no agent'),
        (['agents.policies.q=ppo'], "agents.policies.q is 'ppo' but an evaluation trains no policy"),
    ],
)
def test_wrong_opponents_are_refused(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Opponents(AB, overrides).in_env(NAMES)


def test_opponent_in_place_of_a_policy_of_the_run(two):
    evaluation = evaluate(player_of_policies(load_policies(two.run_dir), ['agents.policies.q=random']), ENV, 2)
    assert evaluation.learners['q'].returns == [(OF_B + OF_C) / 2] * 2
    every = ['agents.policies.q=random', 'agents.policies.p=random']
    with pytest.raises(ConfigError, match='agents.policies replaces p, q; leave a policy of the run'):
        player_of_policies(load_policies(two.run_dir), every)


def test_saved_policy_of_a_name_that_its_run_has_not_is_refused(two):
    saved = f'{{type: saved, path: {two.run_dir}, policy: qq}}'
    player = player_of_policies(load_policies(two.run_dir), [f'agents.policies.q={saved}'])
    with pytest.raises(UserError, match="agents.policies.q.policy is 'qq' but .* it has p, q; did you mean 'q'"):
        evaluate(player, ENV, 2)


CODE = """
import json, sys
from zoo import evaluate, load_policies, load_policy
from zoo.core.errors import UserError

run, trust = sys.argv[1], json.loads(sys.argv[2])
found = []
for load in (load_policies, load_policy):
    try:
        found.append(len(evaluate(load(run, trust=trust), 'tests.agents.envs:Clockwork', 2).returns))
    except UserError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def choose_zero(obs, mask):
    return [0] * len(obs)


def test_code_of_opponents_in_a_checkpoint_is_loaded_with_consent_alone(tmp_path):
    policies = dict(p={}, q=dict(type='function', act='tests.run.test_agents_player:choose_zero'))
    run = trained(tmp_path / 'runs', policies=policies, mapping={'a': 'p', '*': 'q'}).run_dir
    (tmp_path / 'code.py').write_text(CODE)

    def found(trust):
        done = run_python(tmp_path / 'code.py', run, json.dumps(trust), cwd=tmp_path, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    of_all, of_first = found([])
    assert 'tests.run.test_agents_player' in of_all and 'only with your consent' in of_all
    assert "trust=['tests.run.test_agents_player']" in of_first and 'only with your consent' in of_first
    assert found(['tests.run.test_agents_player']) == [2, 2]


def with_code(run_dir, name, monkeypatch):
    """The checkpoint of a run, whose config names an optimizer by code; here it is Adam by another name."""
    monkeypatch.setitem(OPTIMIZER_REGISTRY.entries, name, OPTIMIZER_REGISTRY.entries['adam'])
    checkpoint = load_checkpoint(run_dir)
    checkpoint.meta['config']['policy']['learn']['optimizer'] = name
    save_checkpoint(checkpoint.path, checkpoint.state, checkpoint.meta)
    return str(checkpoint.path)


def test_saved_opponent_with_code_of_its_own_acts_with_the_consent_of_the_run(tmp_path, monkeypatch):
    """The code is named by the checkpoint of the opponent alone; consent of the run that it plays in counts for it too."""
    path = with_code(trained(tmp_path / 'saved', id='off').run_dir, 'code_of_opponent:Own', monkeypatch)
    agents = dict(policies=dict(p={}, q=dict(type='saved', path=path)), mapping={'a': 'p', '*': 'q'}, id='off')
    with pytest.raises(CheckpointError, match="names code of module 'code_of_opponent' .* --import code_of_opponent"):
        trained(tmp_path / 'run', **agents)
    run = serial_pipeline(config_of(tmp_path / 'run', **agents), trust=['code_of_opponent'])
    assert run.env_step == 32


def test_opponent_of_an_override_is_loaded_with_the_consent_of_the_command(shared, tmp_path, monkeypatch):
    path = with_code(trained(tmp_path).run_dir, 'code_of_override:Own', monkeypatch)
    opponent = json.dumps(dict(type='saved', path=path))
    overrides = [f'agents.policies.q={opponent}', 'agents.mapping.b=q']
    policies = load_policies(shared.run_dir)
    with pytest.raises(CheckpointError, match="names code of module 'code_of_override'"):
        evaluate(player_of_policies(policies, overrides), ENV, 1)
    evaluation = evaluate(player_of_policies(policies, overrides, trust=True), ENV, 1)
    assert evaluation.learners['q'].returns == [OF_B]


def test_opponents_of_self_play_are_loaded_with_the_consent_of_the_run(tmp_path, monkeypatch):
    path = with_code(trained(tmp_path / 'saved').run_dir, 'code_of_past:Own', monkeypatch)
    config = config_of(tmp_path / 'run', self_play=dict(fixed=['random', path]))
    with pytest.raises(CheckpointError, match="names code of module 'code_of_past'"):
        serial_pipeline(config)
    assert serial_pipeline(config, trust=['code_of_past']).env_step == 32
