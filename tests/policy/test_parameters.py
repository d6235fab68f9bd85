"""policy.learn.freeze: frozen parameters keep their bits with every executor and update rule; refused configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy.updates import OBS, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, make_policy as tiny_policy
from zoo import make_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.policy.parameters import freeze

SHORT = ['max_env_step=2_048', 'policy.eval.n_episode=1', 'logger.tensorboard=false', 'logger.console=off']
NORM = 'policy.model.obs_norm=true'


def trained(
    kind: str, freeze: list[str], executor: str = 'auto', **learn: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of a small model before and after two updates; for PPG with an auxiliary phase after each."""
    learn |= dict(executor=executor, freeze=freeze, batch_size=16, learning_rate=1e-2)
    if kind == 'ppg':
        learn |= dict(aux_freq=1, aux_batch_size=16)
    sections = dict(collect={'n_step': 8}, model={'obs_norm': True})
    policy = tiny_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, **sections)
    before = clone(policy.model.state_dict())
    for seed in (0, 1):  # traced steps must see the changes of the first update
        policy.learn_mode.forward(samples_of(policy, seed))
    return before, policy.model.state_dict()


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize(
    ('kind', 'frozen', 'learn'),
    [
        ('ppo', ['actor_encoder', 'input'], {'executor': 'eager'}),
        ('ppo', ['actor_encoder', 'policy_head'], {'executor': 'native'}),
        ('ppg', ['actor_encoder', 'input'], {'executor': 'native'}),
        ('ppg', ['actor_encoder', 'input'], {'executor': 'eager'}),
        *(('ppo', ['critic_encoder'], {'optimizer': rule}) for rule in ('adamw', 'sgd', 'muon')),
        ('ppo', ['critic_encoder'], {'optimizer': {'type': 'rmsprop', 'weight_decay': 0.1}}),
    ],
)
def test_frozen_parameters_and_statistics_alone_keep_their_bits(kind: str, frozen: list[str], learn: Any) -> None:
    before, after = trained(kind, [f'{name}*' for name in frozen], **learn)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.split('.')[0] in frozen}


@pytest.mark.slow
@pytest.mark.usefixtures('native')
def test_executors_agree_where_layers_are_frozen(graphs: list[torch.fx.GraphModule]) -> None:
    found = [trained('ppo', ['actor_encoder.*', 'value_head.*'], name)[1] for name in ('eager', 'native', 'graph')]
    assert graphs  # otherwise no step was traced
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def test_norm_of_the_gradient_is_that_of_what_moves() -> None:
    """The squared norm is summed over the moving parameters; the reference gradients are of a policy without freeze."""
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


def test_frozen_layers_behind_a_normalisation_that_moves_are_told(caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy('cartpole_ppo', [NORM])
    with caplog.at_level('INFO'):
        assert freeze(policy.model, ['policy_head.*']) == ['policy_head.weight', 'policy_head.bias']
    assert 'normalisation moves on' in caplog.text


@pytest.mark.parametrize('name', ['actor_encoder', 'critic_encoder', 'critic_encoder.layers.?.*'])
def test_shared_layers_are_frozen_by_either_name(name: str) -> None:
    policy = make_policy('cartpole_ppo', ['policy.model.shared_encoder=both', f'policy.learn.freeze=["{name}"]'])
    frozen = [each for each, p in policy.model.named_parameters() if not p.requires_grad]
    assert len(frozen) == 4 and all(each.startswith('actor_encoder.layers.') for each in frozen)


@pytest.mark.slow
def test_resume_with_another_freeze_says_why_it_does_not_fit(tmp_path: Path) -> None:
    frozen = [*SHORT, 'policy.learn.freeze=[policy_head]']
    first = serial_pipeline('cartpole_ppo', overrides=frozen, run_dir=tmp_path / 'a')
    said = r"policy.learn.freeze was \['policy_head'\] and is \[\] now, which has other state"
    with pytest.raises(UserError, match=said):
        serial_pipeline(resume=first.run_dir, overrides=['policy.learn.freeze=[]'])
