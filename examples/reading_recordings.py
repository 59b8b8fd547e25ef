"""Record episodes, and read them: as tables with pandas, and step by step with h5py.

python examples/reading_recordings.py
"""

from typing import Any

import h5py
import numpy as np
import pandas as pd

import isaaclab_arena as arena


def main() -> pd.DataFrame:
    """Record six episodes, and return how far the gripper went in each."""
    results = arena.evaluate(environment="lift_object", policy="scripted", num_episodes=6, num_envs=3, object="cube")
    [path] = results.output_dir.glob("*/dataset_*.hdf5")
    found: list[dict[str, object]] = []
    with h5py.File(path) as file:
        # HDF5 lists names alphabetically, demo_10 before demo_2.
        demos: Any = file["data"]
        for name in sorted(demos, key=lambda name: int(name.removeprefix("demo_"))):
            demo = demos[name]
            gripper = demo["obs"]["eef_pos"][:]  # (T, 3) [m], before each action
            found.append(
                {
                    "episode_index": demo.attrs["episode_index"],
                    "outcome": demo.attrs["outcome"],
                    "steps": len(demo["actions"]),
                    "way_m": np.linalg.norm(np.diff(gripper, axis=0), axis=1).sum(),
                    "cube_lifted_m": np.ptp(demo["states/rigid_object/cube/root_pose"][:, 2]),
                }
            )
    table = pd.DataFrame(found).merge(results.episodes[["episode_index", "return"]], on="episode_index")
    print(table.to_string(index=False))
    return table


if __name__ == "__main__":
    main()
