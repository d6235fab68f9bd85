"""Pipeline 'serve': a run whose samples come from clients that ask for actions and send rewards over HTTP."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from zoo.config.section import Section
from zoo.core.errors import UserError
from zoo.core.registry import PIPELINE_REGISTRY
from zoo.env import AnyVectorEnv, EnvConfig
from zoo.policy.base import Policy
from zoo.policy.modes import CollectMode
from zoo.run.job import SerialJob
from zoo.run.learner import Learner
from zoo.run.roster import OneColumnRoster, Roster, refuse_agents
from zoo.run.serving.http_server import StepServer, open_server
from zoo.run.serving.served_collector import ServedCollector
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluation
from zoo.worker.infos import InfoKeys

HOST = 'ZOO_SERVE_HOST'
TOKEN = 'ZOO_SERVE_TOKEN'
TOKEN_FILE = 'serve_token'  # in the run folder
logger = logging.getLogger(__name__)


class ServeConfig(Section):
    """Options of the pipeline 'serve'."""

    port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        8585, description='port on which clients reach the run; 0: a free one, which the log says'
    )
    evaluate: bool = Field(
        True,
        description='evaluate the policy in envs of this process, as other runs do; false if clients alone have the env: then only '
        'the spaces of the env are read, and no evaluation happens',
    )
    silence_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description='seconds after which an episode without a message from its client is forgotten'
    )


class ServeRoster(OneColumnRoster):
    """The roster of a run whose clients have the envs. Args: options: of the pipeline; n_sample: steps of a rollout."""

    def __init__(self, options: ServeConfig, n_sample: int) -> None:
        super().__init__("pipeline.type is 'serve'")
        self._options = options
        self._n_sample = n_sample
        self._policy: Policy | None = None

    def env(self, section: EnvConfig) -> EnvConfig:
        """One env is made for the spaces, and others only if they play evaluations."""
        one = {'collector_env_num': 1, 'collector_group_num': 1}
        if not self._options.evaluate:
            one['evaluator_env_num'] = 1
        return section.model_copy(update=one)

    def check_env(self, section: EnvConfig, before_run: bool = False) -> None:
        if self._options.evaluate:
            super().check_env(section, before_run)

    def meet(self, learners: Mapping[str, Learner]) -> None:
        super().meet(learners)
        (learner,) = learners.values()
        self._policy = learner.policy

    def why_not_runners(self, n_learner: int) -> str:
        return 'clients take the steps of a served run'

    def collector(
        self, envs: Sequence[AnyVectorEnv], modes: Mapping[str, CollectMode], infos: InfoKeys, first: int
    ) -> Collector:
        assert self._policy is not None
        return ServedCollector(envs, self._policy, self._n_sample, self._options.silence_s)


@PIPELINE_REGISTRY.register('serve')
class ServedJob(SerialJob):
    """Learns from the steps of clients, see docs/serving.md.

    It listens on the host of the environment variable ZOO_SERVE_HOST, by default on this machine alone. Requests need the token of
    ZOO_SERVE_TOKEN; without it, one is made and written into the run folder, where only the user can read it. Neither is part of
    the config, and so of checkpoints.
    """

    config: ClassVar[type[Section]] = ServeConfig
    collector: ServedCollector
    server: StepServer | None = None

    def roster(self) -> Roster:
        refuse_agents(self.cfg, "pipeline.type is 'serve'")
        if self.cfg.env.ready_num is not None or self.cfg.env.reset_every is not None:
            raise UserError(
                "pipeline.type is 'serve' but env.ready_num or env.reset_every is set, and clients step and reset the envs; "
                'leave both out'
            )
        if not self.is_alone:
            raise UserError("pipeline.type is 'serve' but several processes train together; use one")
        return ServeRoster(self.options, self.cfg.policy.collect.n_sample)

    def start(self) -> None:
        """Begins to serve, and tells the observers that the run begins."""
        if self.server is None:
            self.server = self._serve()
        super().start()

    def play_evaluation(self) -> Evaluation | None:
        """As of other runs; None if clients alone have the env."""
        if not self.options.evaluate:
            return None
        return super().play_evaluation()

    def close(self) -> None:
        n_left = self.collector.ledger.close()
        if n_left:
            logger.info('%d steps of an unfinished rollout are not learned from, nor counted', n_left)
        if self.server is not None:
            self.server.close()
        super().close()

    def _serve(self) -> StepServer:
        host = os.environ.get(HOST, '127.0.0.1')
        token, source = token_for(self.run_dir)
        address = host, self.options.port
        server = open_server(address, token, self.collector.ledger, self.collector.read, self._facts, 'pipeline.port')
        server.start()
        logger.info('clients reach the run at %s; the token is in %s', server.url, source)
        if self.env_step:
            logger.info(
                'the run continues at env step %d; steps that came after it was saved are neither learned from nor counted',
                self.env_step,
            )
        return server

    def _facts(self) -> dict[str, Any]:
        return {
            'env_step': self.env_step,
            'train_iter': self.train_iter,
            'episode': self.collector.episodes.n_episode,
            'obs_space': str(self.policy.obs_space),
            'action_space': str(self.policy.action_space),
        }


def token_for(run_dir: Path) -> tuple[str, str]:
    """The token of the environment, else that of a run folder; and where it is, in words."""
    token = os.environ.get(TOKEN, '')
    if token:
        return token, f'the environment variable {TOKEN}'
    try:
        token, path = token_in(run_dir)
    except OSError as error:
        raise UserError(
            f'no token can be written into {run_dir} ({error.strerror}); give one by --token-file or {TOKEN}'
        ) from error
    return token, str(path)


def token_in(run_dir: Path) -> tuple[str, Path]:
    """The token of a run, which is made if its folder has none; and its file, which only the user can read."""
    path = run_dir / TOKEN_FILE
    if path.is_file():
        token = path.read_text(encoding='utf-8').strip()
        if token:
            return token, path
        path.unlink()  # the process before ended while it wrote it; an empty token would let all in
    token = secrets.token_urlsafe(24)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, 'w', encoding='utf-8') as stream:
        stream.write(token + '\n')
    return token, path
