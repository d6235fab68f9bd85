"""policy.learn.freeze: what is frozen keeps its bits with every executor and rule, and what is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy.test_ppo import OBS, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, differing
from tests.policy_envs import make_policy as tiny_policy
from zoo import make_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.policy.parameters import freeze

SHORT = ['max_env_step=2_048', 'policy.eval.n_episode=1', 'logger.tensorboard=false', 'logger.console=off']
NORM = 'policy.model.obs_norm=true'
FROZEN = ['actor_encoder.layers.0.weight', 'actor_encoder.layers.0.bias', 'actor_encoder.layers.1.weight']
FROZEN += ['actor_encoder.layers.1.bias', 'input.mean', 'input.var', 'input.count', 'input.shift', 'input.scale']


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if torch.equal(before[name], after[name])}


@pytest.mark.slow
@pytest.mark.parametrize('config', ['cartpole_ppo', 'cartpole_ppg'])
@pytest.mark.parametrize('executor', ['native', 'eager'])
def test_frozen_parameters_and_statistics_keep_their_bits(
    config: str, executor: str, native: Any, tmp_path: Path
) -> None:
    words = [*SHORT, NORM, f'policy.learn.executor={executor}', 'policy.learn.freeze=[actor_encoder.*, input]']
    words += ['policy.learn.aux_freq=2'] if config == 'cartpole_ppg' else []
    before = copy.deepcopy(make_policy(config, words).model.state_dict())
    after = serial_pipeline(config, overrides=words, run_dir=tmp_path / 'a').policy.model.state_dict()
    assert unchanged(before, after) == set(FROZEN)


@pytest.mark.slow
def test_native_and_eager_steps_agree_where_layers_are_frozen(native: Any, tmp_path: Path) -> None:
    words = [*SHORT, 'policy.learn.freeze=[actor_encoder.*, value_head.*]']
    found = [
        serial_pipeline(
            'cartpole_ppo', overrides=[*words, f'policy.learn.executor={name}'], run_dir=tmp_path / name
        ).policy.model.state_dict()
        for name in ('native', 'eager')
    ]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('rule', ['adamw', 'sgd', '{type: rmsprop, weight_decay: 0.1}', 'muon'])
def test_weight_decay_and_other_rules_leave_frozen_layers_alone(rule: str, tmp_path: Path) -> None:
    words = [*SHORT, f'policy.learn.optimizer={rule}', 'policy.learn.freeze=[critic_encoder.*]']
    before = copy.deepcopy(make_policy('cartpole_ppo', words).model.state_dict())
    after = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'a').policy.model.state_dict()
    assert unchanged(before, after) == {name for name in before if name.startswith('critic_encoder.')}


def test_norm_of_the_gradient_is_that_of_what_moves() -> None:
    """The sum of squares over the parameters that move, with the gradients of a policy of which all move."""
    words = [*SHORT, 'policy.learn.executor=eager', 'policy.learn.batch_size=null', 'policy.learn.epoch_per_collect=1']
    frozen = [*words, 'policy.learn.freeze=[actor_encoder.*]']
    whole, part = (make_policy('cartpole_ppo', each) for each in (words, frozen))
    gen = torch.Generator().manual_seed(0)
    batch = {'obs': torch.randn(64, 4, generator=gen), 'action': torch.randint(2, (64,), generator=gen)}
    batch |= {'logit': torch.zeros(64, 2), 'value': torch.zeros(64), 'adv': torch.randn(64, generator=gen)}
    batch |= {'return_': torch.randn(64, generator=gen)}
    norms = [float(policy.learn_mode.forward(dict(batch))['grad_norm']) for policy in (whole, part)]
    squares = {name: float(p.grad.square().sum()) for name, p in whole.model.named_parameters()}
    left_out = sum(value for name, value in squares.items() if name.startswith('actor_encoder.'))
    assert left_out > 0
    np.testing.assert_allclose(norms[1] ** 2, norms[0] ** 2 - left_out, rtol=1e-4)


@pytest.mark.slow
def test_resumed_and_copied_policies_stay_frozen(tmp_path: Path) -> None:
    words = [*SHORT, 'policy.learn.freeze=[policy_head.*]']
    first = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'a')
    before = copy.deepcopy(first.policy.model.state_dict())
    for twin in (copy.deepcopy(first.policy), pickle.loads(pickle.dumps(first.policy))):
        assert not twin.model.policy_head.weight.requires_grad
    more = [word for word in words if 'max_env_step' not in word] + ['max_env_step=4_096']
    second = serial_pipeline('cartpole_ppo', overrides=more, run_dir=tmp_path / 'a')
    assert second.train_iter > first.train_iter
    assert unchanged(before, second.policy.model.state_dict()) == {'policy_head.weight', 'policy_head.bias'}


def test_frozen_actor_leaves_the_critic_to_learn(tmp_path: Path) -> None:
    words = [*SHORT, 'policy.learn.freeze=[actor_encoder.*, policy_head.*]']
    before = copy.deepcopy(make_policy('cartpole_ppo', words).model.state_dict())
    after = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'a').policy.model.state_dict()
    assert {name.partition('.')[0] for name in unchanged(before, after)} == {'actor_encoder', 'policy_head'}


@pytest.mark.parametrize(
    'config, patterns, words',
    [
        (
            'cartpole_ppo',
            '[actor_encodr.*]',
            r"'actor_encodr.\*', which matches no parameter .* did you mean actor_encoder",
        ),
        ('cartpole_ppo', "['*']", 'leaves no parameter to train; freeze fewer'),
        ('cartpole_ppg', '[actor_encoder.*, policy_head.*, aux_head.*]', 'leaves nothing to train of the actor'),
    ],
)
def test_patterns_without_meaning_are_refused(config: str, patterns: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_policy(config, [f'policy.learn.freeze={patterns}'])


def test_frozen_layers_behind_a_normalisation_that_moves_are_told(caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy('cartpole_ppo', [NORM])
    with caplog.at_level('INFO'):
        assert freeze(policy.model, ['policy_head.*']) == ['policy_head.weight', 'policy_head.bias']
    assert 'normalisation moves on' in caplog.text


def test_dqn_trains_the_actor_alone_so_it_may_not_be_frozen() -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'dqn'}}
    with pytest.raises(UserError, match="nothing to train of the actor, which is all that policy 'dqn' trains"):
        make_policy(config, ['policy.learn.freeze=[actor_encoder, policy_head]'])


@pytest.mark.parametrize('word', ['policy.learn.value_weight=0', 'policy.learn.critic_learning_rate=1e-3'])
def test_frozen_actor_is_refused_where_its_steps_would_have_no_gradient(word: str) -> None:
    with pytest.raises(UserError, match='leaves nothing to train of the actor'):
        make_policy('cartpole_ppo', [word, 'policy.learn.freeze=[actor_encoder, policy_head]'])


@pytest.mark.parametrize('name', ['actor_encoder', 'critic_encoder', 'critic_encoder.layers.?.*'])
def test_shared_layers_are_frozen_by_either_name(name: str) -> None:
    policy = make_policy('cartpole_ppo', ['policy.model.shared_encoder=both', f'policy.learn.freeze=["{name}"]'])
    frozen = [each for each, p in policy.model.named_parameters() if not p.requires_grad]
    assert len(frozen) == 4 and all(each.startswith('actor_encoder.layers.') for each in frozen)


@pytest.mark.slow
def test_resume_with_another_freeze_says_why_it_does_not_fit(tmp_path: Path) -> None:
    first = serial_pipeline(
        'cartpole_ppo', overrides=[*SHORT, 'policy.learn.freeze=[policy_head]'], run_dir=tmp_path / 'a'
    )
    with pytest.raises(
        UserError, match=r"policy.learn.freeze was \['policy_head'\] and is \[\] now, which has other state"
    ):
        serial_pipeline(resume=first.run_dir, overrides=['policy.learn.freeze=[]'])


@pytest.mark.slow
def test_traced_steps_leave_frozen_layers_alone_and_agree_with_eager_ones(graphs: list[torch.fx.GraphModule]) -> None:
    """The second update too: traced once, it has to read what the first one changed."""
    found = {}
    for executor in ('eager', 'graph'):
        learn: dict[str, Any] = {
            'executor': executor,
            'freeze': ['actor_encoder'],
            'batch_size': 32,
            'learning_rate': 1e-2,
        }
        policy = tiny_policy(OBS, TWO_ACTIONS, learn=learn, collect={'n_step': 8})
        before = clone(policy._model.actor_encoder.state_dict())
        for seed in (0, 1):
            policy.learn_mode.forward(samples_of(policy, seed))
        assert differing(before, policy._model.actor_encoder.state_dict()) == []
        found[executor] = policy._model.state_dict()
    assert graphs  # else both are eager
    for name, value in found['eager'].items():
        torch.testing.assert_close(found['graph'][name], value, rtol=1e-4, atol=1e-5)
