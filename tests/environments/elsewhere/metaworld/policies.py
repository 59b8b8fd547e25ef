"""Experts by the name of their task."""

import warnings


class ReachExpert:
    """Asks for more than the environment takes, and says so."""

    def get_action(self, obs):
        assert (obs.dtype, obs.shape) == ("float64", (39,))
        warnings.warn("Constant(s) may be too high.", stacklevel=2)
        return obs[:4]


ENV_POLICY_MAP = {"reach-v3": ReachExpert}
