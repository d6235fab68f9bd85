"""Old names of gradient steps, until zoo 0.4. They are in `zoo.policy.ppo`, `zoo.policy.passes` and `zoo.backend.step` now."""

from __future__ import annotations

import warnings

from zoo.core.lazy import lazy_names

_MOVED = {
    'zoo.backend.step': 'CLIP MSE GradientStep checked with_log_old n_output_of',
    'zoo.policy.hooks': 'gradient_ready',
    'zoo.policy.metrics': 'step_summary',
    'zoo.policy.passes': 'Passes Trained shuffle',
    'zoo.policy.old_steps': 'PolicyNumbers ValueNumbers policy_terms surrogate_loss',
    'zoo.policy.ppo': 'ppo_step policy_step value_loss_terms descend',
}
__getattr__, __dir__ = lazy_names(__name__, _MOVED)[:2]
warnings.warn(
    'zoo.policy.gradient_steps is gone; import steps and losses from zoo.policy.ppo, Passes from zoo.policy.passes, and '
    'GradientStep, LossSpec and StepNumbers from zoo.backend.step',
    DeprecationWarning,
    stacklevel=2,
)
