"""Networks, registered by name in MODEL_REGISTRY, and the parts that a model of one's own is made of."""

from zoo.model.actor_critic import VAC, RecurrentVAC, VACConfig
from zoo.model.encoder import make_encoder
from zoo.model.heads import make_policy_head
from zoo.model.inputs import make_input
from zoo.model.mlp import ValueHead
from zoo.model.multi import MultiEncoder
from zoo.model.ppg import PPG, PPGConfig, RecurrentPPG
from zoo.model.recurrent import Core
from zoo.model.simba import Simba

__all__ = [
    'PPG',
    'VAC',
    'Core',
    'MultiEncoder',
    'PPGConfig',
    'RecurrentPPG',
    'RecurrentVAC',
    'Simba',
    'VACConfig',
    'ValueHead',
    'make_encoder',
    'make_input',
    'make_policy_head',
]
