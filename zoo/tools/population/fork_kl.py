"""KL divergence of a child from its parent, on the observations of its first rollout: the price of a mutation."""

from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from pathlib import Path

from zoo.core.data import Rollout, map_tensors
from zoo.core.errors import UserError
from zoo.core.files import read_small, whole_file
from zoo.run.checkpoint.consent import Trust
from zoo.run.observers.base import Callback, RunView
from zoo.run.policy_file import load_policy
from zoo.tools.population.growth import kl_of_fork

logger = logging.getLogger(__name__)
NAME = 'fork_kl.json'
"""File in the run folder of a child: {"kl": the mean KL(parent || child) in nats}."""


class ForkKL(Callback):
    """Writes the divergence to a file in the run folder, before the child learns for the first time.

    A memory is in its state at the start of an episode for each observation.
    Args: parent: the checkpoint that the child began with.
    """

    def __init__(self, parent: Path, trust: Trust = ()) -> None:
        self._parent = parent
        self._trust = trust
        self._is_written = False

    def on_rollout(self, job: RunView, rollout: Rollout) -> None:
        if self._is_written:
            return
        self._is_written = True
        obs = map_tensors(lambda x: x.flatten(0, 1), rollout.data['obs'])
        try:
            parent = load_policy(self._parent, trust=self._trust, device=str(job.policy.device))
            kl = kl_of_fork(parent, job.policy, obs)
        except UserError as error:  # no reason to end a run
            logger.warning('the KL divergence from the parent is not known: %s', error)
            return
        with whole_file(job.run_dir / NAME) as file:
            file.write(f'{json.dumps({"kl": kl})}\n'.encode())


def written_kl(run_dir: Path) -> float | None:
    """The divergence in the run folder of a child; None if there is none, or no finite one."""
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        kl = float(json.loads(read_small(run_dir / NAME))['kl'])
        if math.isfinite(kl):
            return kl
    return None
