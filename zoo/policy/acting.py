"""Acting as one compiled call: network, Gumbel or Gaussian noise, action."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from zoo.compiler import CompiledFunction, named_tensors, replaced
from zoo.rl_utils.distribution import Logit, distribution_of, lead_shape, logit_parts


def judge(model: Any, obs: Tensor, one_trunk: bool) -> dict[str, Any]:
    """{logit}, and value (in the critic's unit) where it comes from the trunk that the logit comes from."""
    return model.compute_actor_critic(obs) if one_trunk else {'logit': model.compute_actor(obs)}


class CompiledActing:
    """What `judge` says of observations, and the actions that noise makes of it."""

    def __init__(self, model: nn.Module, one_trunk: bool) -> None:
        self._model: Any = model
        self._one_trunk = one_trunk
        self._run = CompiledFunction(self._flat, 'acting', constants=False)
        self._like: Logit | None = None
        self.refresh()

    def refresh(self) -> None:
        """Looks the model's tensors up again: statistics may be other tensors after an update."""
        named = named_tensors(self._model)
        self._names = list(named)
        self._run.bind([x.detach() for x in named.values()])

    def like(self, obs: Tensor) -> Logit:
        """A logit as for these observations; only its shape and type are meant."""
        if self._like is None or lead_shape(self._like) != obs.shape[:1]:
            self._like = self._model.compute_actor(obs)
        return self._like

    def __call__(self, obs: Tensor, noise: Tensor) -> dict[str, Any]:
        """obs [B, *O], noise [B, ...] as of the distribution -> {action, logit (, value)}."""
        action, *rest = self._run(obs, noise)
        value = {'value': rest.pop()} if self._one_trunk else {}
        return {'action': action, 'logit': rest[0] if len(rest) == 1 else dict(mu=rest[0], sigma=rest[1]), **value}

    def _flat(self, obs: Tensor, noise: Tensor, *tensors: Tensor) -> Sequence[Tensor]:
        with replaced(self._model, dict(zip(self._names, tensors, strict=True))):
            output = judge(self._model, obs, self._one_trunk)
        logit = output['logit']
        action = distribution_of(logit).sample(logit, noise)
        return [action, *logit_parts(logit), *([output['value']] if self._one_trunk else [])]
