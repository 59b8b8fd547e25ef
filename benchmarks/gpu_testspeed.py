"""MuJoCo-Warp's own benchmark, ``mjwarp-testspeed``, on the model of a backend."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mujoco
import warp

from isaaclab_arena.sim.warp.backend import WarpBackend

_LIMIT_S = 120


def testspeed(backend: WarpBackend, num_steps: int) -> float | None:
    """Return the physics steps per second that mjwarp-testspeed says of a model, None where it says nothing."""
    with tempfile.TemporaryDirectory(prefix="testspeed_") as folder:
        model = Path(folder) / "model.mjb"
        mujoco.mj_saveModel(backend.model, str(model))
        command = [
            *(sys.executable, "-m", "mujoco_warp.testspeed", str(model), f"--nworld={backend.num_envs}"),
            *(f"--nstep={num_steps}", f"--nconmax={backend.sizes.contacts}", f"--njmax={backend.sizes.constraints}"),
            *(f"--device={warp.device_from_torch(backend.device).alias}", "--format=json"),
            "--overflow_behavior=continue",
        ]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
            return float(json.loads(ended.stdout.splitlines()[-1])["steps_per_second"])
        except (subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            print(f"mjwarp-testspeed gave no figure: {error} {getattr(error, 'stderr', None) or ''}", flush=True)
            return None
