"""DCPG (Moon et al. 2022, arXiv:2210.09960): PPG with one network whose critic learns in the auxiliary phase alone.

Policy phase:     policy_loss - entropy_weight * entropy + 0.5 * mean((V - V_old)^2)
Auxiliary phase:  0.5 * mean((R - V)^2) + aux_bc_weight * mean(KL(old || new)), after every aux_freq rollouts
V_old is the critic's value before the update. The auxiliary head of the model is left as it is.
"""

from zoo import PHASE_REGISTRY, serial_pipeline
from zoo.policy import PPGPolicy
from zoo.policy.ppg import Phase
from zoo.policy.ppo import descend, value_loss_terms
from zoo.rl_utils.ppo import added, loss_mean


def critic_step(model, dist, optimizers, minibatch, loss, numbers):  # -> detached 0-dim metrics
    output, rows = loss.forward(model, 'compute_actor_critic', minibatch)
    value_loss, metrics = value_loss_terms(output, rows, loss.value_loss, 0.0)
    kl = loss_mean(dist.kl(rows['logit'], output['logit']), rows.get('weight'))
    norm = descend(optimizers, added(value_loss, numbers.bc_weight, kl), numbers.grad_clip)
    names = 'auxiliary_loss', 'behavioral_cloning_loss', 'aux_grad_norm'
    return dict(zip(names, (metrics['value_loss'], kl.detach(), norm), strict=True))


@PHASE_REGISTRY.register('delayed_critic')
def delayed_critic():
    """The critic learns the returns, while KL(old || new) holds the policy (DCPG, arXiv:2210.09960)."""
    return Phase(critic_step, target='return', moves_critic=True)


def problems(self):
    if not self._shares_network:
        yield "policy 'dcpg' needs one network for actor and critic; use policy.model.arch 'shared'"
    if self.cfg.learn.value_weight != 0:
        yield f"policy 'dcpg' delays the critic's loss but value_weight is {self.cfg.learn.value_weight}; leave it out"
    yield from PPGPolicy._problems(self)


learn = {'value_weight': 0.0, 'phase': 'delayed_critic', 'penalties': [{'type': 'value_drift', 'weight': 1.0}]}
PPGPolicy.with_updates(
    'dcpg', {'learn': learn}, _problems=problems, __doc__='PPG with one network and a delayed critic.'
)

config = dict(
    exp_name='dcpg',
    max_env_step=100_000,
    env=dict(id='tiny_bricks', collector_env_num=16),
    policy=dict(
        type='dcpg',
        model=dict(arch='shared', encoder=dict(type='cnn', channels=[16], kernels=[3], strides=[1], hidden_size=128)),
        learn=dict(aux_freq=8, learning_rate=1e-3, entropy_weight=0.01),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
