"""Head of Q-networks: values of actions, or quantiles of their returns; with one stream, or a stream for the state and one for
the advantages of actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from zoo.core.errors import UserError
from zoo.model.layers import Layers
from zoo.rl_utils.init import POLICY_GAIN, orthogonal


class QHead(nn.Module):
    """Features [..., F] -> Q-values [..., A], the means of K quantiles of the return of each action.

    With a stream for the state: quantile_k(a) = V_k + A_k(a) - mean over the actions of A_k.
    Args: n_action: A; n_quantile: K, 1 for the mean return alone; has_value_stream: whether the head is dueling; hidden: widths of
      the hidden layers of each stream; activation, layer_norm: of these.
    Source: Wang et al. 2016, arXiv:1511.06581, eq. 9; Dabney et al. 2018, arXiv:1710.10044, sec. 4.
    """

    def __init__(
        self,
        n_feature: int,
        n_action: int,
        n_quantile: int,
        has_value_stream: bool,
        hidden: Sequence[int] = (),
        activation: Any = 'relu',
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self._shape = n_action, n_quantile

        def stream(n_output: int) -> nn.Module:
            if not hidden:
                return orthogonal(nn.Linear(n_feature, n_output), POLICY_GAIN)
            layers = Layers(n_feature, hidden, activation, layer_norm)
            return nn.Sequential(layers, orthogonal(nn.Linear(layers.n_feature, n_output), POLICY_GAIN))

        self.advantage = stream(math.prod(self._shape))
        self.value: nn.Module | None = None
        if has_value_stream:
            self.value = stream(n_quantile)

    def quantiles(self, feature: Tensor) -> Tensor:
        """Features [..., F] -> quantiles of the return of each action, [..., A, K], in no order."""
        x: Tensor = self.advantage(feature)
        x = x.unflatten(-1, self._shape)
        if self.value is None:
            return x
        value: Tensor = self.value(feature)
        return x - x.mean(-2, keepdim=True) + value.unsqueeze(-2)

    def forward(self, feature: Tensor) -> Tensor:
        return self.quantiles(feature).mean(-1)


def use_q_head(model: Any, n_action: int, n_quantile: int, has_value_stream: bool) -> None:
    """Replaces the head of the actor of a model of zoo by a QHead, with the hidden layers of policy.model.actor_head in each stream.

    Raises: UserError for a model of another kind.
    """
    head = getattr(model, 'policy_head', None)
    encoder = getattr(model, 'actor_encoder', None)
    if head is None or encoder is None:
        raise UserError(
            f'policy.learn.dueling and policy.learn.n_quantile replace the last layer of a model of zoo, got {type(model).__name__}; '
            'leave them out, and let your model compute its Q-values by two streams itself'
        )
    hidden: Sequence[int] = ()
    options: dict[str, Any] = {}
    if isinstance(head, nn.Sequential):
        layers: Any = head[0]
        hidden = [layer.out_features for layer in layers.layers]
        options = {'activation': layers.activation, 'layer_norm': layers.norms is not None}
    model.policy_head = QHead(encoder.n_feature, n_action, n_quantile, has_value_stream, hidden, **options)


def quantiles_of(model: Any, obs: Any) -> Tensor:
    """Quantiles of the returns of all actions, [..., A, K], of a model with a QHead."""
    found: Tensor = model.policy_head.quantiles(model.actor_encoder(model.encoder_input(obs)))
    return found
