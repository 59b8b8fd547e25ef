"""A good job file, and ways to spoil it."""

GOOD = {
    "name": "good",
    "arena_env_args": {"environment": "lift_object", "num_envs": 2},
    "policy_type": "zero_action",
    "num_episodes": 1,
}


def mistaken(**changes) -> dict:
    """Return a file of one good job with some keys changed, or left out where they are ``...``."""
    return {"jobs": [{key: value for key, value in {**GOOD, **changes}.items() if value is not ...}]}


def in_environment(**options) -> dict:
    """Return a file of one good job in an environment with these options."""
    return mistaken(arena_env_args={"environment": "lift_object", **options})
