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
from zoo.core.processes import Interrupted, catch_signals, signal_name
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

logger = logging.getLogger(__name__)
EPOCH = 100
BATCH = 64
RATE = 1e-3
HELD_OUT = 0.1  # share of the episodes that are held out: they only measure the loss
PATIENCE = 10  # epochs without a lower held-out loss after which training ends
GRAD_CLIP = 1.0


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
    _check_arguments(epoch, batch_size, learning_rate)
    place = None
    if run_dir is not None:
        place = Path(run_dir)
        if (place / 'config.yaml').exists():
            raise UserError(f'{place} is the folder of a run; name another one')
    cfg = resolve_config(config, overrides)
    policy = make_policy(cfg)
    student = Student(policy, read_demonstrations(str(demos), policy), cfg)
    folder: RunFolder | None = None

    def discard_folder() -> None:
        if folder is not None:
            folder.discard()

    with ExitStack() as undo:
        received = undo.enter_context(catch_signals(before_exit=discard_folder))
        folder = undo.enter_context(closing(RunFolder(cfg, None, place)))
        limit = torch.get_num_threads()
        undo.callback(use_threads, limit)
        use_threads(cfg.policy.n_thread or phase_threads(policy, {'learn': batch_size}, limit)['learn'])
        folder.begin()
        file = ResultFile(folder.path)
        try:
            fit = _train(student, epoch, batch_size, learning_rate, lambda: bool(received))
            if not keep_std:
                student.restore_std()
            _save(policy, folder.path / 'checkpoints')
        except BaseException as error:
            file.end({'env_step': 0}, error=error)
            raise
        numbers = {'env_step': 0, 'pretrain_epoch': fit.n_epoch, 'pretrain_loss': fit.loss, 'agreement': fit.agreement}
        file.end(numbers, fit.is_whole)
    if received:
        logger.warning('%s with init_from=%s', _after_signal(received[0], fit, epoch), folder.path)
        raise Interrupted(128 + received[0])
    return Pretrained(policy, folder.path, epoch=fit.n_epoch, loss=fit.loss, agreement=fit.agreement)


def _save(policy: Policy, folder: Path) -> None:
    policy._follow_model()
    folder.mkdir(exist_ok=True)
    policy.save(folder / 'step_0.safetensors')


def _after_signal(number: int, fit: _Fit, n_epoch: int) -> str:
    """Returns the start of a sentence on what is saved after a signal."""
    if fit.is_whole:
        return f'{signal_name(number)} came after the last epoch: all is done and saved; train on from it'
    return (
        f'stopped by {signal_name(number)} in epoch {fit.n_epoch} of {n_epoch}; the best parameters so far, of held-out loss '
        f'{fit.loss:.4f} nats, are saved; train on from them'
    )


def _check_arguments(epoch: int, batch_size: int, learning_rate: float) -> None:
    for name, number, example in (('epoch', epoch, EPOCH), ('batch_size', batch_size, BATCH)):
        if type(number) is not int or number < 1:
            raise UserError(f'{name} is {number!r} but must be an integer >= 1; e.g. {example}')
    if not 0 < learning_rate <= 1:
        raise UserError(f'learning_rate is {learning_rate!r} but must be above 0 and at most 1; e.g. {RATE}')


class Judgement(NamedTuple):
    """Comparison of a policy with an expert on some steps, [n] each.

    loss: -log p of the expert's action, in nats; value_error: weighted squared error of the value, or 0; agrees: 1 where the
    greedy action is the expert's, else 0.
    """

    loss: Tensor
    value_error: Tensor
    agrees: Tensor


class _Inputs(NamedTuple):
    """The model's inputs for a batch, and for each real (not padded) step its index in the data and in the output."""

    columns: Columns
    in_data: Tensor
    in_output: Tensor | slice


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
        loss = torch.cat([self.judge(batch).loss for batch in self.batches(self.episodes, BATCH, None)])
        impossible = (~loss.isfinite()).nonzero().flatten().tolist()
        if impossible:
            raise UserError(
                f'{len(impossible)} of {len(loss)} demonstrated actions have the probability 0, first that of step '
                f'{impossible[0]}: the action mask forbids it; record actions that the env allows'
            )

    def batches(self, episodes: Sequence[slice], size: int, order: np.random.Generator | None) -> Iterator[Any]:
        """Yields batches: indices of steps [n], or lists of episodes. Args: order: of a random order; None: the given order."""
        if not self.has_memory:
            steps = np.concatenate([np.arange(episode.start, episode.stop) for episode in episodes])
            if order is not None:
                steps = order.permutation(steps)
            for i in range(0, len(steps), size):
                yield torch.as_tensor(steps[i : i + size])
            return
        if order is not None:
            episodes = [episodes[i] for i in order.permutation(len(episodes))]
        batch: list[slice] = []
        for episode in episodes:
            batch.append(episode)
            if sum(map(_n_step, batch)) >= size:
                yield batch
                batch = []
        if batch:
            yield batch

    def judge(self, batch: Any) -> Judgement:
        """Compares the policy with the expert on the steps of a batch."""
        inputs = self._inputs(batch)
        method = 'compute_actor_critic'
        if self.return_ is None:
            method = 'compute_actor'
        output = run_model(self.policy.model, method, inputs.columns)
        logit = output['logit'][inputs.in_output]
        action = self._action[inputs.in_data]
        loss = -self.dist.log_prob(logit, action)
        error = torch.zeros_like(loss)
        if self.return_ is not None:
            value = self.policy.samples.units.restore(output['value'][inputs.in_output])
            error = (value - self.return_[inputs.in_data]).square() * self.known[inputs.in_data]
        agrees = self.dist.mode(logit) == action
        if agrees.dim() > 1:
            agrees = agrees.all(-1)
        return Judgement(loss, error, agrees.float())

    def _inputs(self, batch: Any) -> _Inputs:
        if not self.has_memory:
            index = send(batch, self.policy.device)
            obs = map_tensors(lambda x: x[index], self._obs)
            return _Inputs({'obs': obs, 'return_': index}, in_data=index, in_output=slice(None))
        step = torch.arange(max(map(_n_step, batch)))
        start = torch.tensor([[episode.start] for episode in batch])
        stop = torch.tensor([[episode.stop] for episode in batch])
        index = start + step  # [B, T], beyond the end of an episode where it is padded
        is_real = index < stop
        rows = {'return_': index.clamp(max=self._demos.n_step - 1), 'is_first': (step == 0).expand(len(batch), -1)}
        columns: Any = to_device(rows, self.policy.device)
        columns['obs'] = map_tensors(lambda x: x[columns['return_']], self._obs)
        columns['state'] = self.policy.model.initial_state(len(batch))
        in_output = send(is_real.flatten().nonzero().squeeze(1), self.policy.device)
        return _Inputs(columns, in_data=columns['return_'].flatten()[in_output], in_output=in_output)

    @torch.no_grad()
    def restore_std(self) -> None:
        """Restores the state-independent deviations of continuous actions to their values before the training."""
        for name, before in self._std.items():
            p = self.policy.model.get_parameter(name)
            logger.info(
                'standard deviation of actions, for a run to explore: %.3g put back to %.3g (--keep-std keeps it)',
                p.exp().mean(),
                before.exp().mean(),
            )
            p.copy_(before)


class _Fit(NamedTuple):
    """The result of `_train`: number of epochs; loss and agreement of the best epoch; whether nothing ended it early."""

    n_epoch: int
    loss: float
    agreement: float | None
    is_whole: bool


def _train(student: Student, n_epoch: int, batch_size: int, rate: float, stops: Callable[[], bool]) -> _Fit:
    """Trains until the held-out loss stops falling or `stops` returns true, and leaves the best parameters in the policy."""
    order = np.random.default_rng(stream(student.policy.seed, 'pretrain'))
    training, held_out = split(student.episodes, order)
    model = student.policy.model
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    best = _Measurement(float('inf'), 0.0)
    best_parameters = copy.deepcopy(model.state_dict())
    n_without_progress = 0
    epoch = 0
    is_stopped = False
    while epoch < n_epoch and n_without_progress < PATIENCE and not is_stopped:
        epoch += 1
        for batch in student.batches(training, batch_size, order):
            is_stopped = stops()
            if is_stopped:
                break
            _step(student, optimizer, student.judge(batch))
        measured = _measure(student, held_out, batch_size)
        _tell_epoch(student, measured, epoch, n_epoch)
        n_without_progress += 1
        if measured.loss < best.loss:
            n_without_progress = 0
            best = measured
            best_parameters = copy.deepcopy(model.state_dict())
        if epoch < n_epoch and n_without_progress < PATIENCE and not is_stopped:
            is_stopped = stops()
    model.load_state_dict(best_parameters)
    optimizer.zero_grad(set_to_none=False)
    agreement = None if student.is_continuous else best.agreement
    return _Fit(n_epoch=epoch, loss=best.loss, agreement=agreement, is_whole=not is_stopped)


def _step(student: Student, optimizer: torch.optim.Optimizer, judgement: Judgement) -> None:
    optimizer.zero_grad(set_to_none=False)
    (judgement.loss.mean() + 0.5 * judgement.value_error.mean() / student.return_var).backward()
    torch.nn.utils.clip_grad_norm_(student.policy.model.parameters(), GRAD_CLIP)
    optimizer.step()


def _tell_epoch(student: Student, measured: _Measurement, epoch: int, n_epoch: int) -> None:
    """Logs the held-out loss of an epoch. Raises: UserError if it is not finite."""
    if not np.isfinite(measured.loss):
        raise UserError(
            f'the loss of epoch {epoch} is {measured.loss}; lower --learning-rate, or look at the demonstrations'
        )
    agreement = ''
    if not student.is_continuous:
        agreement = f', agrees with {measured.agreement:.1%} of the actions'
    logger.info('epoch %d of %d: held-out loss %.4f nats%s', epoch, n_epoch, measured.loss, agreement)


def split(episodes: Sequence[slice], order: np.random.Generator) -> tuple[list[slice], list[slice]]:
    """Splits episodes into those for training and those that are held out; of a single episode, its last steps are held out."""
    if len(episodes) > 1:
        shuffled = [episodes[i] for i in order.permutation(len(episodes))]
        n_held = max(round(HELD_OUT * len(episodes)), 1)
        return shuffled[n_held:], shuffled[:n_held]
    end = episodes[0].stop
    n_held = max(round(HELD_OUT * end), 1)
    if end > 1:
        return [slice(0, end - n_held)], [slice(end - n_held, end)]
    return list(episodes), list(episodes)


class _Measurement(NamedTuple):
    """Means over the held-out steps: loss in nats, and share of the expert's actions that the greedy policy takes too."""

    loss: float
    agreement: float


@torch.no_grad()
def _measure(student: Student, episodes: Sequence[slice], batch_size: int) -> _Measurement:
    judgements = [student.judge(batch) for batch in student.batches(episodes, batch_size, None)]
    loss = torch.cat([judgement.loss for judgement in judgements]).double().mean()
    agreement = torch.cat([judgement.agrees for judgement in judgements]).double().mean()
    return _Measurement(float(loss), float(agreement))


def _n_step(episode: slice) -> int:
    return episode.stop - episode.start


def _discounted(reward: Tensor, episodes: Sequence[slice], gamma: float, from_end: bool = False) -> Tensor:
    """Discounted sums [N]: sum_t = reward_t + gamma * sum_{t-1}, from the start of each episode; from_end: backwards."""
    all_sums = reward.cpu().numpy().astype(np.float64)
    for episode in episodes:
        sums = all_sums[episode]  # a view
        if from_end:
            sums = sums[::-1]
        for t in range(1, len(sums)):
            sums[t] += gamma * sums[t - 1]
    return torch.as_tensor(all_sums, dtype=torch.float32)


def _known(episodes: Sequence[slice], terminated: np.ndarray | None, gamma: float) -> Tensor:
    """Returns for each step the share of its return that the data contain, [N]: below 1 only if the episode was cut off."""
    share = torch.ones(episodes[-1].stop)
    for i, episode in enumerate(episodes):
        if terminated is not None and not terminated[i]:
            share[episode] = 1 - gamma ** torch.arange(_n_step(episode), 0, -1.0)
    return share
