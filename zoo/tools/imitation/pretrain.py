"""Behaviour cloning before a run: a policy learns the actions of an expert, and its critic the returns."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Columns, keeps_state, map_tensors, send, to_device
from zoo.core.errors import UserError
from zoo.core.processes import Interrupted, catch_signals
from zoo.core.seeding import stream
from zoo.policy.actor_critic import ActorCriticPolicy
from zoo.policy.base import Policy
from zoo.policy.sequences import run_model
from zoo.run.base_config import JobConfig
from zoo.run.build import make_policy
from zoo.run.config import resolve_config
from zoo.run.folder import RunFolder
from zoo.run.resources import phase_threads, use_threads
from zoo.run.result import ResultFile
from zoo.tools.imitation.demonstrations import Demonstrations, read_demonstrations

EPOCH = 100
BATCH = 64
RATE = 1e-3
HELD_OUT = 0.1  # share of the episodes that are held out: they only measure the loss
PATIENCE = 10  # epochs without a lower held-out loss after which training ends
GRAD_CLIP = 1.0

logger = logging.getLogger(__name__)


class Pretrained(NamedTuple):
    """The result of pretraining. epoch: epochs that were trained; loss: mean of -log p(action) of the held-out steps, in nats;
    agreement: share of their actions that the greedy policy takes too (None for continuous actions)."""

    policy: Policy
    run_dir: Path
    epoch: int
    loss: float
    agreement: float | None


def pretrain(
    config: Any,
    demos: str | Path,
    *,
    overrides: Sequence[str] = (),
    epoch: int = EPOCH,
    batch_size: int = BATCH,
    learning_rate: float = RATE,
    keep_std: bool = False,
    run_dir: str | Path | None = None,
) -> Pretrained:
    """Trains the policy of a config on demonstrations, without an env step, and saves it as a run at env step 0.

    loss = -mean(log p(action)) + mean(w (V - R)^2) / (2 var R), the second term only if there are rewards. R is the discounted
    reward to the end of the episode. w is 1; in an episode that a time limit cut off k steps later, w is 1 - gamma^k, because
    R lacks the share gamma^k of the future.
    The config's statistics of observations, rewards and returns are those of the demonstrations. A tenth of the episodes is
    held out; training ends when their loss has not fallen for 10 epochs, and the parameters of the best epoch are kept.

    Args:
      config: what `serial_pipeline` takes; demos: a file .npz, or the id of a dataset of Minari.
      epoch: most passes over the data; batch_size: steps; for a policy with memory whole episodes with about that many steps.
      keep_std: false: a state-independent log_std of continuous actions gets its initial value back. That of a perfect
        expert is so small that ppo would not explore and would take wild steps; greedy actions are the same.
      run_dir: of the new run; None: as for a run.
    Returns: Pretrained. Raises: UserError, ConfigError before anything is written; Interrupted (SystemExit, 128 + its number)
      after SIGINT, SIGTERM, SIGHUP or SIGUSR1, with the best parameters so far saved. A second SIGINT or SIGTERM ends the
      process at once; its files in the folder are then removed, unless the policy is saved.
    """
    for name, number in (('epoch', epoch), ('batch_size', batch_size)):
        if type(number) is not int or number < 1:
            raise UserError(
                f'{name} is {number!r} but must be an integer >= 1; e.g. {EPOCH if name == "epoch" else BATCH}'
            )
    if not 0 < learning_rate <= 1:
        raise UserError(f'learning_rate is {learning_rate!r} but must be above 0 and at most 1; e.g. {RATE}')
    if run_dir is None:
        place = None
    else:
        place = Path(run_dir)
    if place is not None and (place / 'config.yaml').exists():
        raise UserError(f'{place} is the folder of a run; name another one')
    cfg = resolve_config(config, overrides)
    policy = make_policy(cfg)
    student = Student(policy, read_demonstrations(str(demos), policy), cfg)
    folder: RunFolder | None = None
    with ExitStack() as undo:
        received = undo.enter_context(
            catch_signals(before_exit=lambda: folder.discard() if folder is not None else None)
        )
        folder = undo.enter_context(closing(RunFolder(cfg, None, place)))
        limit = torch.get_num_threads()
        undo.callback(use_threads, limit)
        use_threads(cfg.policy.n_thread or phase_threads(policy, {'learn': batch_size}, limit)['learn'])
        folder.begin()
        file = ResultFile(folder.path)
        try:
            n_epoch, loss, agreement, is_whole = _train(
                student, epoch, batch_size, learning_rate, lambda: bool(received)
            )
            if not keep_std:
                student.restore_std()
            policy._follow_model()
            (folder.path / 'checkpoints').mkdir(exist_ok=True)
            policy.save(folder.path / 'checkpoints' / 'step_0.safetensors')
        except BaseException as error:
            file.end({'env_step': 0}, error=error)
            raise
        numbers = {'env_step': 0, 'pretrain_epoch': n_epoch, 'pretrain_loss': loss, 'agreement': agreement}
        file.end(numbers, is_whole)
    if not received:
        return Pretrained(policy, folder.path, n_epoch, loss, agreement)
    said = f'signal {received[0]} came after the last epoch: all is done and saved; train on from it'
    if not is_whole:
        said = (
            f'stopped by signal {received[0]} in epoch {n_epoch} of {epoch}; the best parameters so far, of held-out loss '
            f'{loss:.4f} nats, are saved; train on from them'
        )
    logger.warning('%s with init_from=%s', said, folder.path)
    raise Interrupted(128 + received[0])


class Student:
    """A policy and its demonstrations: as single steps, or as episodes for a policy with memory."""

    def __init__(self, policy: Policy, demos: Demonstrations, cfg: JobConfig) -> None:
        if not isinstance(policy, ActorCriticPolicy):
            raise UserError(
                f'policy {cfg.policy.type!r} has no distribution of actions to fit; choose an actor-critic, as policy.type=ppo'
            )
        self.policy = policy
        self.dist = policy.dist
        self._demos = demos
        self._obs = to_device(demos.obs, policy.device)
        self._action = demos.policy_action(policy).to(policy.device)
        self.is_continuous = self._action.is_floating_point()
        self.dist.check_action(self._action, self._action.shape[:1])
        self.episodes = demos.episodes()
        self.has_memory = keeps_state(policy.model)
        self._std = {
            name: p.detach().clone() for name, p in policy.model.named_parameters() if name.endswith('.log_std')
        }
        self.return_: Tensor | None = None
        self.return_var = 1.0  # of the returns; 1 if there are none, or all are equal
        self._fit_statistics(cfg)
        self._refuse_impossible()

    def _fit_statistics(self, cfg: JobConfig) -> None:
        update = getattr(self.policy.model, 'update_normalizer', None)
        if update is not None:
            update(self._obs, None)
        if self._demos.reward is None or cfg.policy.learn.get('baseline') == 'none':
            return
        gamma = cfg.policy.collect['discount_factor']
        reward = torch.as_tensor(self._demos.reward, dtype=torch.float32)
        normalizers = self.policy._normalizers
        if 'reward' in normalizers:
            normalizers['reward'].update(_discounted(reward, self.episodes, gamma).to(self.policy.device))
            reward = normalizers['reward'].rescale(reward.to(self.policy.device)).cpu()
        self.return_ = _discounted(reward, self.episodes, gamma, from_end=True).to(self.policy.device)
        self.return_var = float(self.return_.var(correction=0)) or 1.0
        self.known = _known(self.episodes, self._demos.terminated, gamma).to(self.policy.device)
        if 'value' in normalizers:
            normalizers['value'].update(self.return_)

    @torch.no_grad()
    def _refuse_impossible(self) -> None:
        """Checks that all demonstrated actions are possible. Raises: UserError if the policy gives one the probability 0."""
        loss = torch.cat([self.judge(batch)[0] for batch in self.batches(self.episodes, BATCH, None)])
        bad = (~loss.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise UserError(
                f'{len(bad)} of {len(loss)} demonstrated actions have the probability 0, first that of step {bad[0]}: the action '
                'mask forbids it; record actions that the env allows'
            )

    def batches(self, episodes: Sequence[slice], size: int, order: np.random.Generator | None) -> Iterator[Any]:
        """Yields batches: indices of steps [n], or lists of episodes. Args: order: of a random order; None: the given order."""
        if not self.has_memory:
            rows = np.concatenate([np.arange(each.start, each.stop) for each in episodes])
            if order is not None:
                rows = order.permutation(rows)
            yield from (torch.as_tensor(rows[i : i + size]) for i in range(0, len(rows), size))
            return
        if order is not None:
            episodes = [episodes[i] for i in order.permutation(len(episodes))]
        batch: list[slice] = []
        for episode in episodes:
            batch.append(episode)
            if sum(each.stop - each.start for each in batch) >= size:
                yield batch
                batch = []
        if batch:
            yield batch

    def judge(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns [n] each: -log p of the expert's action, weighted squared value error or 0, agreement of the greedy action."""
        columns, (index, is_there) = self._columns(batch)
        if self.return_ is None:
            method = 'compute_actor'
        else:
            method = 'compute_actor_critic'
        output = run_model(self.policy.model, method, columns)
        logit = output['logit'][is_there]
        action = self._action[index]
        loss = -self.dist.log_prob(logit, action)
        error = torch.zeros_like(loss)
        if self.return_ is not None:
            value = self.policy.samples.units.restore(output['value'][is_there])
            error = (value - self.return_[index]).square() * self.known[index]
        agrees = self.dist.mode(logit) == action
        return loss, error, (agrees if agrees.dim() == 1 else agrees.all(-1)).float()

    def _columns(self, batch: Any) -> tuple[Columns, tuple[Tensor, Any]]:
        """Returns the model's inputs, and for each real (not padded) step its index in the data and in the output."""
        if not self.has_memory:
            index = send(batch, self.policy.device)
            return {'obs': map_tensors(lambda x: x[index], self._obs), 'return_': index}, (index, slice(None))
        step = torch.arange(max(each.stop - each.start for each in batch))
        start, stop = (torch.tensor([[getattr(each, end)] for each in batch]) for end in ('start', 'stop'))
        at = start + step
        is_there = start + step < stop
        rows = {'return_': at.clamp(max=self._demos.n_step - 1), 'is_first': (step == 0).expand(len(batch), -1)}
        columns: Any = to_device(rows, self.policy.device)
        columns['obs'] = map_tensors(lambda x: x[columns['return_']], self._obs)
        columns['state'] = self.policy.model.initial_state(len(batch))
        where = send(is_there.flatten().nonzero().squeeze(1), self.policy.device)
        return columns, (columns['return_'].flatten()[where], where)

    @torch.no_grad()
    def restore_std(self) -> None:
        """Restores the state-independent deviations of continuous actions to their values before the training."""
        for name, before in self._std.items():
            p = self.policy.model.get_parameter(name)
            logger.info(
                'standard deviation of actions, for a run to explore: %.3g put back to %.3g (--keep-std keeps it)',
                *(p.exp().mean(), before.exp().mean()),
            )
            p.copy_(before)


def _train(
    student: Student, n_epoch: int, batch_size: int, rate: float, stops: Callable[[], bool]
) -> tuple[int, float, float | None, bool]:
    """Trains until the held-out loss stops falling or `stops` returns true, and leaves the best parameters in the policy.

    Returns: number of epochs; loss and agreement of the best epoch; whether `stops` did not end the training early.
    """
    order = np.random.default_rng(stream(student.policy.seed, 'pretrain'))
    used, held = split(student.episodes, order)
    model = student.policy.model
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    best = (float('inf'), 0.0)
    since = 0
    done = 0
    is_cut = False
    kept = copy.deepcopy(model.state_dict())
    for done in range(1, n_epoch + 1):
        for batch in student.batches(used, batch_size, order):
            is_cut = stops()
            if is_cut:
                break
            loss, error, _ = student.judge(batch)
            optimizer.zero_grad(set_to_none=False)
            (loss.mean() + 0.5 * error.mean() / student.return_var).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
            optimizer.step()
        found = _measure(student, held, batch_size)
        if not np.isfinite(found[0]):
            raise UserError(
                f'the loss of epoch {done} is {found[0]}; lower --learning-rate, or look at the demonstrations'
            )
        if student.is_continuous:
            agrees = ''
        else:
            agrees = f', agrees with {found[1]:.1%} of the actions'
        logger.info('epoch %d of %d: held-out loss %.4f nats%s', done, n_epoch, found[0], agrees)
        if found[0] < best[0]:
            since = 0
        else:
            since = since + 1
        if since == 0:
            best = found
            kept = copy.deepcopy(model.state_dict())
        if is_cut or since >= PATIENCE or done == n_epoch or (is_cut := stops()):
            break
    model.load_state_dict(kept)
    optimizer.zero_grad(set_to_none=False)
    return done, best[0], None if student.is_continuous else best[1], not is_cut


def split(episodes: Sequence[slice], order: np.random.Generator) -> tuple[list[slice], list[slice]]:
    """Splits episodes into those for training and those that are held out; of a single episode, its last steps are held out."""
    if len(episodes) > 1:
        shuffled = [episodes[i] for i in order.permutation(len(episodes))]
        n_held = max(round(HELD_OUT * len(episodes)), 1)
        return shuffled[n_held:], shuffled[:n_held]
    end = episodes[0].stop
    n_held = max(round(HELD_OUT * end), 1)
    if end > 1:
        return ([slice(0, end - n_held)], [slice(end - n_held, end)])
    return (list(episodes), list(episodes))


@torch.no_grad()
def _measure(student: Student, episodes: Sequence[slice], batch_size: int) -> tuple[float, float]:
    """Returns the mean loss and agreement over the steps of episodes."""
    parts = [student.judge(batch) for batch in student.batches(episodes, batch_size, None)]
    loss, agrees = (torch.cat([part[i] for part in parts]).double().mean() for i in (0, 2))
    return float(loss), float(agrees)


def _discounted(reward: Tensor, episodes: Sequence[slice], gamma: float, from_end: bool = False) -> Tensor:
    """Discounted sums [N]: sum_t = reward_t + gamma * sum_{t-1}, from the start of each episode; from_end: backwards."""
    found = reward.cpu().numpy().astype(np.float64)
    for each in episodes:
        # a view
        if from_end:
            sums = found[each][::-1]
        else:
            sums = found[each]
        for t in range(1, len(sums)):
            sums[t] += gamma * sums[t - 1]
    return torch.as_tensor(found, dtype=torch.float32)


def _known(episodes: Sequence[slice], terminated: np.ndarray | None, gamma: float) -> Tensor:
    """Returns for each step the share of its return that the data contain, [N]: below 1 only if the episode was cut off."""
    found = torch.ones(episodes[-1].stop)
    for i, each in enumerate(episodes):
        if terminated is not None and not terminated[i]:
            found[each] = 1 - gamma ** torch.arange(each.stop - each.start, 0, -1.0)
    return found
