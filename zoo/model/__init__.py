"""Networks, registered by name in MODEL_REGISTRY, and the parts that a model of one's own is made of."""

from zoo.model.actor_critic import VAC, VACConfig
from zoo.model.encoder import make_encoder, make_input, make_policy_head
from zoo.model.mlp import ValueHead
from zoo.model.ppg import PPG, PPGConfig

__all__ = ['PPG', 'VAC', 'PPGConfig', 'VACConfig', 'ValueHead', 'make_encoder', 'make_input', 'make_policy_head']
