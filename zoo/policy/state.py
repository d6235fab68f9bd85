"""The whole state of a policy as nested dicts, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.policy.base import Policy


def state_of(policy: Policy) -> dict[str, Any]:
    """What `Policy.state_dict` returns: of the network, the statistics of observations, and each mode that was built."""
    state: dict[str, Any] = {
        'model': dict(policy._model.state_dict()),
        'normalizer': dict(policy._normalizers.state_dict()),
    }
    if 'learn' in policy._fields:
        state['learn'] = policy._state_dict_learn()
    if 'collect' in policy._fields:
        state['collect'] = policy._state_dict_collect()
    return state


def load_state(policy: Policy, state: dict[str, Any]) -> None:
    """Copies a `state_of` in; modes that the policy does not have are left out.

    Raises: RuntimeError for other names or shapes of the network.
    """
    policy._model.load_state_dict(state['model'])
    known = policy._normalizers.state_dict()
    policy._normalizers.load_state_dict({k: v for k, v in state['normalizer'].items() if k in known})
    if 'learn' in policy._fields:
        policy._load_state_dict_learn(state['learn'])
    if 'collect' in policy._fields:
        policy._load_state_dict_collect(state.get('collect', {}))
