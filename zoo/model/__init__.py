"""Networks, registered by name in MODEL_REGISTRY."""
from zoo.model.actor_critic import VAC, VACConfig

__all__ = ['VAC', 'VACConfig']
