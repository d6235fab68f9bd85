"""PPO in one page: CartPole-v1 learned with torch, gymnasium and the formulas of zoo.rl_utils, and no other part of zoo.

`python ppo_in_one_page.py` trains for 100,000 env steps; a number after it is the seed. The settings are those of `zoo train
cartpole_ppo env.vectorization=sync`, and the parameters stay bit-equal to those of that run with its eager executor: the random
streams, networks, minibatches and losses are the same, in the same order.
"""

import math
import sys

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

from zoo.rl_utils import Categorical, FlatAdam, gae_data, gae_return, normalize_advantage, ppo_data, ppo_error

MAX_ENV_STEP = 100_000
N_ENV = 8  # B
N_STEP = 128  # T, env steps of an env in a rollout
N_EPOCH = 10  # passes over a rollout
BATCH_SIZE = 256  # samples of a gradient step
GAMMA = 0.99
GAE_LAMBDA = 0.95
LEARNING_RATE = (2e-3, 0.0)  # from, to
CLIP_RATIO = (0.2, 0.02)
MIN_CLIP_RATIO = 1e-6
VALUE_WEIGHT = 0.5
GRAD_CLIP = 0.5


def stream(seed, *name):
    """The random stream of one part of the run; streams of other names are independent of it."""
    numbers = [int.from_bytes(x.encode(), 'little') if isinstance(x, str) else x for x in name]
    return np.random.SeedSequence([seed, *numbers])


def generator(seed, *name):
    """A generator of torch at the beginning of the stream of that name."""
    return torch.Generator().manual_seed(int(stream(seed, *name).generate_state(1, np.uint64)[0]) >> 1)


def linear(n_in, n_out, gain):
    """A layer with orthogonal weights and zero biases."""
    layer = nn.Linear(n_in, n_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def hidden(n_obs):
    return nn.Sequential(linear(n_obs, 64, math.sqrt(2)), nn.Tanh(), linear(64, 64, math.sqrt(2)), nn.Tanh())


class ActorCritic(nn.Module):
    """Two networks: obs [N, O] -> the logits of the actions [N, A], and the value [N]."""

    def __init__(self, n_obs, n_action):
        super().__init__()
        self.actor = hidden(n_obs)
        self.critic = hidden(n_obs)
        self.policy_head = linear(64, n_action, 0.01)  # nearly uniform at the start
        self.value_head = linear(64, 1, 1.0)

    def logit(self, obs):
        return self.policy_head(self.actor(obs))

    def value(self, obs):
        return self.value_head(self.critic(obs)).squeeze(-1)


@torch.no_grad()
def collect(envs, obs, model, dist, noise):
    """T steps of B envs, from their observations `obs` [B, O] on -> the rollout, tensors [T, B, ...]; the next observations."""
    rows = []
    finals = {}  # (t, env) -> the last observation of an episode
    for t in range(N_STEP):
        logit = model.logit(obs)
        action = dist.sample(logit, noise[t])
        next_obs, reward, terminated, truncated, info = envs.step(action.numpy())
        for i in np.flatnonzero(terminated | truncated):
            finals[t, i] = torch.tensor(info['final_obs'][i])  # next_obs is the first of the next episode
        row = {'obs': obs, 'action': action, 'logit': logit, 'reward': torch.tensor(reward, dtype=torch.float32)}
        rows.append({**row, 'terminated': torch.tensor(terminated), 'truncated': torch.tensor(truncated)})
        obs = torch.tensor(next_obs)
    rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    # values of all rows, of the observations after the last one, and of the true last observations of episodes
    value = model.value(torch.cat([rollout['obs'].flatten(0, 1), obs, *(x[None] for x in finals.values())]))
    block = value[: (N_STEP + 1) * N_ENV].view(N_STEP + 1, N_ENV)
    rollout['value'] = block[:-1]
    rollout['next_value'] = block[1:].clone()
    for (t, i), final_value in zip(finals, value[(N_STEP + 1) * N_ENV :], strict=True):
        rollout['next_value'][t, i] = final_value
    return rollout, obs


def samples_of(rollout):
    """Advantages and returns of a rollout; -> columns [N, ...], N = T * B."""
    done = rollout['terminated']
    data = gae_data(rollout['value'], rollout['next_value'], rollout['reward'], done, done | rollout['truncated'])
    estimate = gae_return(data, GAMMA, GAE_LAMBDA)
    columns = {name: rollout[name] for name in ('obs', 'action', 'logit', 'value')}
    columns |= {'adv': estimate.adv, 'return_': estimate.return_}
    return {name: x.flatten(0, 1) for name, x in columns.items()}


def update(model, dist, optimizer, samples, clip_ratio, order):
    """One gradient step for each minibatch of each pass; `order` [n_pass, N] has the rows of each pass."""
    for rows in order.view(-1, BATCH_SIZE):
        batch = {name: x[rows] for name, x in samples.items()}
        adv = normalize_advantage(batch['adv'])
        logit = model.logit(batch['obs'])
        value = model.value(batch['obs'])
        data = ppo_data(logit, batch['logit'], batch['action'], value, batch['value'], adv, batch['return_'])
        loss, _ = ppo_error(data, clip_ratio, use_value_clip=False, dist=dist)
        optimizer.zero_grad()
        (loss.policy_loss + VALUE_WEIGHT * loss.value_loss).backward()
        optimizer.step(GRAD_CLIP)


def train(seed=0, max_env_step=MAX_ENV_STEP, n_rollout=None):
    """Trains until max_env_step, or for n_rollout rollouts -> the model; the number of episodes that ended in each rollout."""
    envs = gymnasium.make_vec('CartPole-v1', N_ENV, 'sync', {'autoreset_mode': AutoresetMode.SAME_STEP})
    dist = Categorical(int(envs.single_action_space.n))
    torch.manual_seed(int(stream(seed, 'model').generate_state(1)[0]))
    model = ActorCritic(envs.single_observation_space.shape[0], dist.n_param)
    optimizer = FlatAdam(model.named_parameters())
    seeds = [int(child.generate_state(1)[0]) >> 1 for child in stream(seed, 'collect', 0).spawn(N_ENV)]
    obs = torch.tensor(envs.reset(seed=seeds)[0])
    size = N_STEP * N_ENV
    train_iter = 0  # gradient steps so far
    n_end = []
    for i in range(max_env_step // size if n_rollout is None else n_rollout):
        over = i * size / max_env_step  # the share of the run before this rollout
        optimizer.lr, clip_ratio = (first + over * (last - first) for first, last in (LEARNING_RATE, CLIP_RATIO))
        noise = dist.noise((N_STEP, N_ENV), generator(seed, 'collect', 0, i), torch.device('cpu'))
        rollout, obs = collect(envs, obs, model, dist, noise)
        shuffle = generator(seed, 'learn', 0, train_iter)
        order = torch.stack([torch.randperm(size, generator=shuffle) for _ in range(N_EPOCH)])
        update(model, dist, optimizer, samples_of(rollout), max(clip_ratio, MIN_CLIP_RATIO), order)
        train_iter += order.numel() // BATCH_SIZE
        n_end.append(int((rollout['terminated'] | rollout['truncated']).sum()))
    return model, n_end


if __name__ == '__main__':
    model, n_end = train(*map(int, sys.argv[1:2]))
    # the reward of every step is 1, so the length of an episode is its return; 500 is the most
    print(f'mean return in the last 10 rollouts: {10 * N_STEP * N_ENV / sum(n_end[-10:]):.1f}')
