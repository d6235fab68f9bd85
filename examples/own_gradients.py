"""Gradients of your own: a separate norm limit for each tensor, and noise that decreases (Neelakantan et al. 2015)."""

import torch

from zoo import Callback, serial_pipeline


class ClippedNoisyGradients(Callback):
    """Called between the backward pass and the step of the optimisers."""

    def __init__(self, limit=0.5, eta=1e-6, decay=0.55):
        self.limit, self.eta, self.decay = limit, eta, decay
        self.n_step, self.n_limited = 0, 0

    def on_start(self, job):
        self.generator = torch.Generator(job.policy.device).manual_seed(job.cfg.seed)

    def on_gradient(self, job, optimizers, loss):
        self.n_step += 1
        deviation = (self.eta / self.n_step**self.decay) ** 0.5
        for optimizer in optimizers:
            for grad in optimizer.cut(optimizer.grad).values():  # views: writing into one changes the step
                norm = grad.norm()
                self.n_limited += int(norm > self.limit)
                grad.mul_((self.limit / norm).clamp(max=1.0))
            noise = torch.randn(optimizer.grad.shape, generator=self.generator, device=optimizer.grad.device)
            optimizer.grad.add_(noise, alpha=deviation)

    def on_update(self, job, metrics):
        return {'limited_share': self.n_limited / self.n_step}


config = dict(
    exp_name='own_gradients',
    max_env_step=30_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3, grad_clip=None)),
    callbacks=[ClippedNoisyGradients],
)

if __name__ == '__main__':
    serial_pipeline(config)
