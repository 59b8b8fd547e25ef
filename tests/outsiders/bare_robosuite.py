"""A plain loop in robosuite's own interpreter: ``python bare_robosuite.py TASK SEED ACTIONS.npy OUT.npz``."""

import gc
import sys
import typing

import numpy as np
import robosuite  # pyright: ignore[reportMissingImports]  in its own interpreter


def main(task: str, seed: int, actions: np.ndarray, out: str) -> None:
    # What a reset leaves behind would free the textures of its successor, whenever it is collected.
    gc.disable()
    environment = robosuite.make(
        task,
        robots=["Panda"],
        controller_configs=[robosuite.load_composite_controller_config(controller=None, robot="Panda")],
        has_renderer=False,
        use_camera_obs=True,
        camera_names=["agentview", "robot0_eye_in_hand"],
        camera_heights=84,
        camera_widths=84,
        control_freq=20,
        ignore_done=True,
        seed=seed,
    )
    # It has drawn from the seed while it was made, so the generator starts anew.
    environment.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    shown = [environment.reset()]
    shown += [environment.step(action)[0] for action in actions.astype(np.float64)]
    stacked: typing.Any = {name: np.stack([np.atleast_1d(each[name]) for each in shown]) for name in shown[0]}
    np.savez(out, **stacked)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), np.load(sys.argv[3]), sys.argv[4])
