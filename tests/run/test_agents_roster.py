"""Several policies in one run: their learners, configs, files and errors."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.policy_envs import job_config, rows
from zoo import SerialJob, load_policy, serial_pipeline
from zoo.core.errors import UserError


def config_of(root, **agents):
    return job_config(
        root,
        'CartPole-v1',
        max_env_step=128,
        env=dict(id='tests.agents.envs:Clockwork', collector_env_num=2, evaluator_env_num=2, vectorization='sync'),
        policy=dict(type='ppo', collect=dict(n_step=16), learn=dict(batch_size=16), eval=dict(n_episode=2)),
        agents=agents,
    )


def test_two_policies_of_two_types(tmp_path):
    agents = dict(
        policies=dict(p={}, q=dict(type='dqn', learn=dict(batch_size=8), buffer=dict(n_sample=16))),
        mapping={'a': 'p', '*': 'q'},
    )
    result = serial_pipeline(config_of(tmp_path, **agents))
    assert {name: policy.cfg.type for name, policy in result.policies.items()} == {'p': 'ppo', 'q': 'dqn'}
    (path,) = (result.run_dir / 'checkpoints').glob('step_*.q.safetensors')
    assert load_policy(path).cfg.type == 'dqn'
    assert load_policy(result.run_dir).cfg.type == 'ppo'


def test_policy_that_is_not_trained_stays(tmp_path):
    agents = dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'}, train=['q'])
    with SerialJob(config_of(tmp_path, **agents)) as job:
        before = {name: x.clone() for name, x in job.learners['p'].policy.state_dict()['model'].items()}
        job.iteration()
        after = job.learners['p'].policy.state_dict()['model']
        assert all((x == after[name]).all() for name, x in before.items())
        assert job.learners['p'].train_iter == 0 < job.learners['q'].train_iter


@pytest.mark.parametrize(
    ('agents', 'sentence'),
    [
        (dict(policies=dict(p={}, q={})), 'agents.mapping does not say'),
        (dict(train=['x']), "agents.train has 'x'"),
        (dict(train=[]), 'agents.train is \\[\\]'),
        (dict(policies=dict(p=dict(model=dict(critic_obs=['state', 'agent'])))), 'agents.state is off'),
        (dict(policies=dict(p=dict(collect=dict(n_step=8)))), 'all policies act in the same rollouts'),
        (dict(policies=dict(p=dict(learn=dict(batch_sise=8)))), 'batch_sise'),
        (dict(policies=dict(p='randm')), "unknown type of agents.policies.p 'randm': did you mean 'random'"),
        (dict(score='x'), "agents.score is 'x' but must be a policy \\(shared\\), an agent \\(a, b, c\\)"),
    ],
)
def test_wrong_sections_are_refused_before_anything_is_written(agents, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        serial_pipeline(config_of(tmp_path, **agents))
    assert not list(tmp_path.iterdir())


def test_section_agents_with_one_agent_is_refused(tmp_path):
    config = config_of(tmp_path, state='concat')
    config['env']['id'] = 'CartPole-v1'
    with pytest.raises(UserError, match='is an env of one agent; leave the section agents out'):
        serial_pipeline(config)


def test_random_function_and_saved_policies_act_and_have_no_files(tmp_path):
    policies = dict(p={}, q='random', r=dict(type='function', act='tests.run.test_agents_roster:always_one'))
    agents = dict(policies=policies, mapping={'a': 'p', 'b': 'q', 'c': 'r'}, id='off')
    first = serial_pipeline(config_of(tmp_path, **agents))
    assert list(first.policies) == ['']
    assert not list((first.run_dir / 'checkpoints').glob('*.q.*'))
    saved = dict(type='saved', path=str(first.run_dir))
    with SerialJob(config_of(tmp_path, **{**agents, 'policies': policies | dict(q=saved)})) as job:
        job.iteration()
        once, again = job.play_evaluation(), job.play_evaluation()
        assert once.agents == again.agents


def always_one(obs, mask):
    return [1] * len(obs)


def alternating(agent, episode, copy):
    return 'pq'[(episode + copy) % 2] if agent == 'b' else 'q'


def test_function_maps_agents_by_episode(tmp_path):
    """b belongs to p in every other episode; an episode has 5 steps, in 4 of which b acts."""
    agents = dict(policies=dict(p={}, q={}), mapping='tests.run.test_agents_roster:alternating')
    with SerialJob(config_of(tmp_path, **agents)) as job:
        rollouts = job.collector.collect_by_name()
        data = rollouts['p'].data
        real = ~data['is_reset']
        # episodes begin with steps 0, 5, 10, 15; b is p's in episodes 0 and 2 of copy 0, and in 1 and 3 of copy 1
        assert real.sum(0).tolist() == [0, 4 + 4, 0, 0, 4 + 1, 0]
        assert set(data['reward'][real].tolist()) == {2.0, 16.0, 128.0, 1024.0}


@pytest.mark.parametrize(('agents', 'n_episode'), [(dict(train=['p']), 2), (dict(score='p'), 2), (dict(), 4)])
def test_score_of_a_policy_to_which_a_function_maps_agents(agents, n_episode, tmp_path):
    """p plays b in episode 0 of copy 0 and in episode 1 of copy 1; without a score the team counts, in all four episodes."""
    config = config_of(
        tmp_path, policies=dict(p={}, q={}), mapping='tests.run.test_agents_roster:alternating', **agents
    )
    config['policy']['eval']['n_episode'] = 4
    with SerialJob(config) as job:
        evaluation = job.evaluate()
    of_a, of_b, of_c = 1 + 8, 2 + 16 + 128 + 1024, 256 + 2048 + 16384
    assert evaluation.learners['p'].returns == [of_b] * 2
    expected = of_b
    if not agents:
        expected = of_a + of_b + of_c
    assert evaluation.returns == [expected] * n_episode


def all_q(agent, episode, copy):
    return 'q'


def test_evaluation_without_an_episode_of_the_policy_that_counts_is_refused(tmp_path):
    agents = dict(policies=dict(p={}, q={}), mapping='tests.run.test_agents_roster:all_q', score='p')
    with SerialJob(config_of(tmp_path, **agents)) as job:
        with pytest.raises(UserError, match='no episode of the evaluation counts: the policy of agents.score'):
            job.evaluate()


def test_actions_of_agents_count_as_env_steps(tmp_path):
    """In the 5 steps of an episode agents act 2 + 2 + 2 + 2 + 1 = 9 times."""
    config = config_of(tmp_path, count_by='agent')
    config['max_env_step'] = 256
    config['policy']['eval']['eval_freq'] = 100
    config['checkpoint'] = dict(freq=100, keep_last=10)
    result = serial_pipeline(config)
    # 16 steps of 2 copies are 3 episodes and a step, 2 * (3 * 9 + 2) = 58 actions; 32 are 2 * (6 * 9 + 4) = 116; 48 are
    # 2 * (9 * 9 + 6) = 174, and the next rollout may have up to 16 * 2 * 3 = 96, which is more than 256 - 174
    assert result.env_step == 174
    log = rows(result.run_dir)
    updates = [row for row in log if 'collect/agent_step' in row]
    assert [(row['env_step'], row['collect/agent_step']) for row in updates] == [(n, n) for n in (58, 116, 174)]
    assert [row['env_step'] for row in log if 'eval/return_mean' in row] == [116, 174]
    saved = sorted(path.name for path in (result.run_dir / 'checkpoints').glob('step_*'))
    assert [int(name.partition('_')[2].partition('.')[0]) for name in saved] == [116, 174]
    # a resume begins new episodes: 58 actions more, and 300 - 232 is less than 96
    again = serial_pipeline(resume=result.run_dir, max_env_step=300)
    assert again.env_step == 232
    assert rows(again.run_dir)[-2]['collect/agent_step'] == 232


def test_actions_of_agents_continue_after_a_resume_that_counts_steps_of_envs(tmp_path):
    first = serial_pipeline(config_of(tmp_path) | dict(max_env_step=32))
    again = serial_pipeline(resume=first.run_dir, max_env_step=64)
    assert (first.env_step, again.env_step) == (32, 64)
    assert [row['collect/agent_step'] for row in rows(again.run_dir) if 'collect/agent_step' in row] == [58, 116]


def test_rounds_of_a_run_that_counts_agents(tmp_path):
    with SerialJob(config_of(tmp_path, count_by='agent')) as job:
        assert (job.step_per_iteration, job.n_iteration) == (96, 0)
        job.iteration()
        assert (job.env_step, job.n_iteration, job.done) == (58, 1, True)  # 58 + 96 > 128


def test_check_before_a_run_takes_legal_moves(tmp_path):
    """`Masked` fails at an illegal move; the check of the tables themselves would draw such."""
    config = config_of(tmp_path)
    config['env'] |= dict(id='tests.agents.test_inspection:Masked', check=True)
    with SerialJob(config) as job:
        job.iteration()
        assert job.env_step == 32


def other_policy(agent, episode, copy):
    return 'r'


def too_few_arguments(agent, episode):
    return 'p'


@pytest.mark.parametrize(
    ('mapping', 'sentence'),
    [
        (other_policy, r"agents.mapping returned 'r' for \('a', 0, 0\) but must return a policy: p, q"),
        (too_few_arguments, r'agents.mapping, a function of .* raised TypeError: too_few_arguments\(\) takes 2'),
    ],
)
def test_functions_that_map_to_no_policy_are_refused_before_anything_is_written(mapping, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        serial_pipeline(config_of(tmp_path, policies=dict(p={}, q={}), mapping=mapping))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('kind', ['dqn', 'ppo_offpolicy'])
def test_replay_takes_rollouts_with_and_without_idle_agents(kind, tmp_path):
    """An agent ends in one of 100 steps: in some rollouts every row acts, in others not."""
    config = job_config(
        tmp_path,
        'CartPole-v1',
        max_env_step=320,
        env=dict(id='tests.agents.chance_env:Chance', kwargs=dict(end=0.01), collector_env_num=2, vectorization='sync'),
        policy=dict(type=kind, collect=dict(n_step=8), eval=dict(n_episode=1)),
        buffer=dict(n_sample=16),
    )
    config['policy']['learn'] = dict(batch_size=16)
    with SerialJob(config) as job:
        weighted = set()
        for _ in range(20):
            rollouts = job.collector.collect_by_name()
            weighted.add('is_reset' in rollouts[''].data)
            job.learner.push(job.learner.samples_of(rollouts['']))
        assert weighted == {True, False}
        n_real = job.buffer.state_dict()['ring']['push_number'].numel()
        assert n_real == job.collector.agent_step < 20 * 2 * 3 * 8
        batch = next(iter(job.buffer.batches()))
        assert 'weight' not in batch  # each sample is an action of an agent


@pytest.mark.parametrize('kind', ['dqn', 'ppo_offpolicy'])
def test_replay_draws_actions_of_agents_alone(kind, tmp_path):
    """Rota has 7 actions in an episode of 7 steps: a acts in 0 and 2, b in 1 and 4, c in 3, 5 and 6, and each earns what it does.

    Observations are [step, agent, id]. A rollout has 21 rows; the outcome of each action is known at its end.
    """
    config = job_config(
        tmp_path,
        'CartPole-v1',
        max_env_step=70,
        env=dict(id='tests.agents.envs:Rota', collector_env_num=1, vectorization='sync'),
        policy=dict(type=kind, collect=dict(n_step=7), eval=dict(n_episode=1)),
        buffer=dict(size=21, n_sample=7, update_per_collect=30),
    )
    config['policy']['learn'] = dict(batch_size=7)
    with SerialJob(config) as job:
        job.collect_round()
        for batch in job.buffer.batches():
            acted = sorted((int(t), 'abc'[int(i)]) for t, i in batch['obs'][:, :2].tolist())
            assert acted == list(enumerate('abacbcc'))
        for _ in range(3):
            job.collect_round()
        counts = Counter()
        for batch in job.buffer.batches():
            counts.update((int(t), 'abc'[int(i)]) for t, i in batch['obs'][:, :2].tolist())
        assert set(counts) == set(enumerate('abacbcc'))
        assert sum(counts.values()) == 30 * 7
        assert (
            min(counts.values()) >= 15
        )  # 30 each on average, of 3 samples with a share of 1/3: deviation sqrt(30 * 2/3) < 5


def test_minibatches_divide_the_rows_of_all_agents(tmp_path):
    """16 steps of 2 copies are 32 rows of one agent, and 96 of three."""
    config = config_of(tmp_path, id='on')
    config['policy']['learn']['batch_size'] = 24
    with SerialJob(config) as job:
        job.iteration()
        assert job.learner.policy.cfg.collect.n_sample == 96
    config['policy']['learn']['batch_size'] = 36
    with pytest.raises(UserError, match='agents, policy .*batch_size is 36 but a rollout has 96 samples'):
        serial_pipeline(config)


def test_each_policy_begins_with_the_parameters_of_its_name(tmp_path):
    """A policy that the saved run has not begins with those of its first one."""
    agents = dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'}, id='off')
    first = serial_pipeline(config_of(tmp_path, **agents))
    saved = {name: policy.state_dict()['model'] for name, policy in first.policies.items()}
    others = dict(policies=dict(q={}, r={}), mapping={'a': 'r', '*': 'q'}, id='off')
    with SerialJob(config_of(tmp_path, **others) | dict(init_from=str(first.run_dir))) as job:
        for name, source in (('q', 'q'), ('r', 'p')):
            now = job.learners[name].policy.state_dict()['model']
            assert all((now[key] == x).all() for key, x in saved[source].items())
    assert any((saved['p'][key] != x).any() for key, x in saved['q'].items())
