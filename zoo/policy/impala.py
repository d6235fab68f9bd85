"""Policy 'impala': actor-critic whose samples may be of older policies (Espeholt et al. 2018, arXiv:1802.01561).

Each rollout is one batch and makes one step of the policy gradient, on -mean(adv * log p(action)) + value_weight * value
loss - entropy_weight * entropy, without a clip. V-trace weighs advantages and returns by the ratio of the policy to the one
that acted, so rollouts may be several updates old: cluster.max_lag. With fresh samples it is a2c with longer rollouts.

Departs: losses are means. The paper's are sums over 32 rollouts of 20 steps, with an epsilon of .1 under RMSprop's root: on
means, and beside the root, that is sqrt(.1) / 640 = 5e-4. The limit of the gradient is a2c's.
"""

from __future__ import annotations

from zoo.policy.a2c import A2CPolicy

A2CPolicy.with_updates(
    'impala',
    {
        'learn': {
            'correction': 'vtrace',
            'learning_rate': 6e-4,
            'optimizer': {'type': 'rmsprop', 'alpha': 0.99, 'eps': 5e-4},
        },
        'collect': {'n_step': 20},
    },
    __doc__='IMPALA: one step of the policy gradient for each rollout, which V-trace corrects for its age.',
)
