"""The loop of a run: collect, learn, log, evaluate, save, repeat; registered as the pipeline 'serial'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from zoo.agents.config import AgentsConfig
from zoo.config.components import section_of
from zoo.core.data import Metrics, Rollout
from zoo.core.errors import CallbackError, UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import PIPELINE_REGISTRY
from zoo.core.timer import Timer
from zoo.env.errors import SeveralAgentsError
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.build import RunBuilder, complete_config
from zoo.run.checkpoint import Checkpoint
from zoo.run.learner import Learner
from zoo.run.observers.base import RunView, handlers_of
from zoo.run.observers.rounds import mean_metrics, play_evaluations, refuse_empty
from zoo.run.result import RoundResult, TrainResult
from zoo.run.resume import files_of_others, meta_of, state_of
from zoo.run.roster import ONE_LEARNER, ReadyRoster, Roster, refuse_ready_agents
from zoo.worker.evaluator import Evaluation, OnEvaluation, joined_evaluations
from zoo.worker.infos import Episodes
from zoo.worker.own_numbers import OwnNumbers


def _never() -> bool:
    return False


@PIPELINE_REGISTRY.register('serial')
class SerialJob(RunView):
    """Collects a rollout and learns from it, repeatedly.

    `iteration` is one round: `collect_round`, then `learn_round`. For another pipeline, derive a class that overrides these
    two, and `step_per_iteration` if it collects another number of rollouts, and register it in PIPELINE_REGISTRY; the config
    names it (`pipeline`). Its options are its class attribute `config`, a Section. For several policies in one run also
    override `roster`.

    Args: cfg: a resolved config (frozen here), or any config that `serial_pipeline` takes; policy, model, callbacks,
      on_evaluation: as there; checkpoint: to continue from; run_dir: the folder of the run, instead of a new one below
      logger.root; ranks: those that train together, of which only rank 0 writes.
    Attributes: learners: by name, the first one first; learner: that of the current event, else the first one; its policy,
      buffer and learn mode are also attributes of the run; stop_requested: called during evaluations, which may be long;
      returns whether to stop; options: the section `pipeline`, complete; envs: those of training and evaluation, whose
      attributes may be read and set between rollouts; is_whole: whether the state is that of complete updates; false after
      an error in the middle of a round; leads: whether this process writes files: of several ranks, only rank 0 does;
      is_alone: whether it trains alone: one of several ranks must do nothing alone that the others would wait for.
    """

    def __init__(
        self,
        cfg: JobConfig | Mapping[str, Any] | str | Path,
        policy: Policy | None = None,
        checkpoint: Checkpoint | None = None,
        model: nn.Module | None = None,
        callbacks: Sequence[Any] = (),
        on_evaluation: OnEvaluation | None = None,
        run_dir: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.cfg = cfg = complete_config(cfg, checkpoint)
        self.options = section_of(PIPELINE_REGISTRY, cfg.pipeline, 'pipeline')
        self.timer = Timer(('sample', 'learn', 'evaluate', 'log'))
        self.stop_requested: Callable[[], bool] = lambda: False
        self.stop_reason: str | None = None
        self.is_whole = True
        self.own_numbers = OwnNumbers()
        self._round = RoundResult()  # of the current round, or of calls outside of a round
        self._learn_step: int | None = None  # env step before the first rollout that is not learned from yet
        self._ranks = ranks
        self.leads = ranks.rank == 0
        self.is_alone = ranks is ALONE
        with ExitStack() as undo:  # closes what was made if the rest fails

            def build(roster: Roster) -> RunBuilder:
                run = RunBuilder(cfg, checkpoint, callbacks, on_evaluation, ranks, undo, roster)
                self.parts = run.make(policy, model, run_dir)
                return run

            roster = self.roster()
            try:
                self._run = run = build(roster)
            except SeveralAgentsError as error:
                refuse_ready_agents(cfg)
                if roster is not ONE_LEARNER:
                    raise UserError(
                        f'{type(self).__name__}.roster returned a {type(roster).__name__}, for envs of one agent, but the env has '
                        'several; return an AgentsRoster of zoo.run.agents_roster, or one derived from it'
                    ) from error
                from zoo.run.agents_roster import AgentsRoster

                undo.close()
                self._run = run = build(AgentsRoster(cfg))
            self.learners = self.parts.learners
            self._first = self.learner = self.parts.first
            self.collector = self.parts.collector
            self.progress = run.progress
            self.agreement = run.agreement
            run.open(self, lambda: self._write(run.manager.save_best))
            self._handlers = handlers_of(run.observers)
            run.begin(self)
            self._undo = undo.pop_all()

    def roster(self) -> Roster:
        """The roster of the run: its learners, and how they share its envs."""
        if self.cfg.agents == AgentsConfig():
            if self.cfg.env.ready_num is not None:
                return ReadyRoster(self.cfg)
            return ONE_LEARNER
        refuse_ready_agents(self.cfg)
        from zoo.run.agents_roster import AgentsRoster  # few runs have several agents

        if self.cfg.agents.self_play is not None:
            from zoo.run.self_play_roster import SelfPlayRoster

            return SelfPlayRoster(self.cfg)
        return AgentsRoster(self.cfg)

    def start(self) -> None:
        """Tells the observers, once, that the run begins; the first iteration calls it if nobody has."""
        self._tell_once('on_start')

    def iteration(self) -> RoundResult:
        """Runs one round: collects, learns, and tells the observers, which evaluate and save if due; returns what it did."""
        self.start()
        self._round = found = RoundResult()
        self._tell('before_round')
        self.collect_round()
        self.learn_round()
        found.env_step = self.env_step
        found.train_iter = self.train_iter
        self._tell('after_round')
        return found

    def collect_round(self) -> Episodes | None:
        """Collects one rollout, makes samples of it and pushes them into the buffers of the learners.

        Returns: the episodes that ended in it, in this process. A pipeline of one's own need not return any.
        """
        if self._learn_step is None:
            self._learn_step = self.env_step
        else:
            for learner in self.learners.values():
                learner.keep()  # the last rollout was not learned from, and is overwritten now
        self._tell('before_rollout')
        with self.timer.label('zoo/collect'):
            rollouts = self.collector.collect_by_name()
        self._tell('after_rollout')
        with self.timer.part('sample'):
            for name, rollout in rollouts.items():
                self.learner = self.learners[name]
                self._push(self.learner, rollout)
            self.learner = self._first
        episodes = self.collector.episodes.newest
        self._round.returns += episodes.returns
        self._round.lengths += episodes.lengths
        return episodes

    def _push(self, learner: Learner, rollout: Rollout) -> None:
        """Makes samples of a rollout, and pushes them into the buffer of its learner."""
        self._tell('on_rollout', rollout)
        self.is_whole = False  # after an error from here on nothing is saved, unless a callback raised it
        samples = learner.samples_of(rollout)
        self.is_whole = True
        self._tell('on_samples', samples)
        self.is_whole = False
        learner.push(samples)
        self.is_whole = True

    def learn_round(self) -> Metrics | None:
        """Runs one round of updates of each learner, on the batches of its buffer.

        Returns: the metrics, 0-dim tensors by their names in the log without the group's name, with those that callbacks
          add. A pipeline of one's own need not return any.
        """
        if self._learn_step is None:
            env_step = self.env_step
        else:
            env_step = self._learn_step
        self._tell('before_update', env_step)
        with self.timer.part('learn'):
            self.is_whole = False
            metrics: Metrics = {}
            for learner in self.learners.values():
                if learner.learns:
                    self.learner = learner
                    metrics |= self._learn(learner, env_step)
            self.learner = self._first
            self.is_whole = True
        self._learn_step = None
        self._tell('after_update')
        with self.timer.part('log'):
            self._tell('on_update', metrics)
            self._tell('on_metrics', metrics)
        self._round.metrics |= metrics
        return metrics

    def _learn(self, learner: Learner, env_step: int) -> Metrics:
        """Runs one round of updates of a learner; returns its metrics by their names in the log, without the group's name."""
        if self._learn_step is None:
            refuse_empty(learner.buffer)
        learner.begin_update(env_step)
        metrics_of_batches = []
        for batch in learner.buffer.batches():
            metrics = learner.learn(batch)
            metrics_of_batches.append(metrics)
            self._tell('on_batch', batch, metrics)
        return learner.named(mean_metrics(metrics_of_batches))

    def evaluate(self) -> Evaluation | None:
        """Plays greedy episodes on the evaluation envs; observers keep the best policy, and stop the run at stop_value.

        Returns: None if a signal came before all episodes had ended.
        """
        evaluation = self.play_evaluation()
        if evaluation is not None:
            self.progress.eval_step = self.env_step
            self.progress.last_return = evaluation.return_mean
            self._round.evaluation = evaluation
            with self.timer.part('log'):
                self._tell('on_evaluate', evaluation)
            self._tell('after_evaluation', evaluation)
        return evaluation

    def play_evaluation(self) -> Evaluation | None:
        """Plays the episodes of `evaluate`, but logs and keeps nothing."""
        with self.timer.part('evaluate'):
            self._tell('before_evaluation')
            stop = self.stop_requested
            if not self.is_alone:  # it would leave the other ranks waiting
                stop = _never
            evaluation = play_evaluations(self.parts, self.cfg.seed, self.env_step, stop, self.agreement.evaluation_key)
            if evaluation is None:
                return None
            return joined_evaluations(self._ranks.gather(evaluation))

    def save(self) -> Path:
        """Writes a checkpoint of everything and returns its path. Raises: SaveError if it cannot be written."""
        self.progress.save_step = self.env_step
        return self._write(self._run.manager.save)

    def finish(self, evaluate: bool = True) -> None:
        """Saves and tells the observers; evaluates the last policy before, unless that was just done.

        It may be called again after more iterations: the observers are told once, result.json has the last end.
        Raises: SaveError, whose `result` has the trained policy.
        """
        self.start()
        is_evaluated = evaluate and self.progress.is_evaluated(self.env_step)
        if evaluate and not is_evaluated:
            is_evaluated = self.evaluate() is not None  # None: a signal came meanwhile
        self._run.ending.save()
        self._tell_once('on_end', self.result())
        self._run.ending.finish(is_evaluated)

    def result(self) -> TrainResult:
        """The result of the run so far. Its policies are told the env steps of their training, and save them with themselves."""
        policies = {name: learner.policy for name, learner in self.learners.items()}
        for policy in policies.values():
            policy.run = policy.run._replace(env_step=self.env_step)
        progress = self.progress
        stop_reason = self.stop_reason or ''
        if not stop_reason and progress.reached(self.cfg.policy.eval.stop_value):
            stop_reason = 'policy.eval.stop_value is reached'
        return TrainResult(
            policy=self._first.policy,
            run_dir=self.run_dir,
            env_step=self.env_step,
            train_iter=self.train_iter,
            best_return=progress.best_return,
            last_return=progress.last_return,
            wall_s=self.wall_s,
            env_step_per_s=self._run.report.env_step_per_s,
            stop_reason=stop_reason,
            policies=policies,
            return_of=self._run.roster.return_of,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resume needs of the run and its first learner; the envs' own state is not part of it."""
        rules = self._run.stop_rules
        stop = {}
        if rules is not None:
            stop = rules.state_dict()
        state = state_of(self, self.is_whole, stop)
        league = self._run.roster.state_dict()
        if league:
            state['league'] = league
        levels = self._run.levels_state()
        if levels:
            state['levels'] = levels
        own = self.own_numbers.state_dict()
        if own:
            state['own_numbers'] = own
        return state

    def close(self) -> None:
        """Closes envs and logs, and restores torch's number of threads; nothing is saved."""
        self._run.ending.leave()
        self._undo.close()

    def __enter__(self) -> SerialJob:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # after an error in on_gradient the policy is that of the last complete step, else of the last complete update, if any
        is_savable = self.is_whole or isinstance(error, CallbackError)
        try:
            self._run.ending.leave(error, is_savable and self.is_alone)  # other ranks wait elsewhere and do not save
        finally:
            self._run.log.close(has_failed=error is not None)
            self.close()

    def _tell(self, event: str, *args: object) -> None:
        """Tells an event to the observers that handle it, in their order."""
        for handle in self._handlers[event]:
            handle(self, *args)

    def _tell_once(self, event: str, *args: object) -> None:
        for handle in self._handlers.pop(event, ()):
            handle(self, *args)

    def _write(self, save: Callable[..., Path]) -> Path:
        """Writes a checkpoint by a method of the manager."""
        others = files_of_others(self, self.is_whole)
        path = save(self.env_step, self.state_dict(), meta_of(self), others)
        if self.leads:
            self._tell('on_checkpoint', path)
        return path
