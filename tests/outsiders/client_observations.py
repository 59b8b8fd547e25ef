"""What clients of other packages show a server; needs nothing but numpy, so that it runs in every interpreter."""

import numpy as np

SESSIONS, STEPS = 3, 7


def pictures(session, step):
    generator = np.random.default_rng([session, step])
    return {name: generator.integers(0, 256, (6, 8, 3), np.uint8) for name in ("front", "side")}


def states(session, step):
    generator = np.random.default_rng([session, step, 1])
    sizes = {"robot_joint_pos": 4, "fingers": 2, "nameless": 3}
    return {name: generator.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def words(session):
    return f"move to {session}"
