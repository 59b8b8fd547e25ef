"""Compile a stranger's MJCF file in a process of its own first: a short file can ask for any time and memory.

MuJoCo compiles ``<replicate>`` inside ``<replicate>``, textures of any size and meshes without a limit, in native code
that nothing here can stop. So this file is also the program that does it once, with limits.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import mujoco

MAX_SECONDS = 60
MAX_MEMORY_BYTES = 4 << 30
MAX_MODEL_BYTES = 512 << 20
MAX_BODIES = 2_000
MAX_GEOMS = 20_000

_BUDGET = "give the robot fewer replicas, smaller textures or simpler meshes"


def wrong_with_mjcf(path: Path, *, max_seconds: int = MAX_SECONDS) -> str | None:
    """Return the problem of an MJCF file, None if it compiles within the limits; ``max_seconds`` is CPU time [s]."""
    # Wall time is limited to twice the CPU time.
    command = [sys.executable, "-I", __file__, str(path), str(max_seconds)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=2 * max_seconds, check=False)  # noqa: S603  this file
    except subprocess.TimeoutExpired:
        return f"takes MuJoCo more than {2 * max_seconds} s to compile; {_BUDGET}"
    try:
        told = json.loads(done.stdout)
    except ValueError:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        limits = f"{max_seconds} s of processor time and {MAX_MEMORY_BYTES >> 30} GiB of memory"
        return f"cannot be compiled within {limits}, or ends MuJoCo ({how}); {_BUDGET}"
    if told["error"]:
        return told["error"]
    sizes, most_of = told["sizes"], {"bytes": MAX_MODEL_BYTES, "bodies": MAX_BODIES, "geoms": MAX_GEOMS}
    beyond = [f"{sizes[what]} {what} (at most {most})" for what, most in most_of.items() if sizes[what] > most]
    return f"compiles to {', '.join(beyond)}; {_BUDGET}" if beyond else None


if __name__ == "__main__":
    seconds = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if sys.platform.startswith("linux"):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    problem, found = None, {}
    try:
        model = mujoco.MjModel.from_xml_path(sys.argv[1])
        found = {"bytes": int(mujoco.mj_sizeModel(model)), "bodies": int(model.nbody), "geoms": int(model.ngeom)}
    except ValueError as refused:
        problem = f"is refused by MuJoCo: {str(refused).strip()}"
    except MemoryError:
        problem = f"needs more than {MAX_MEMORY_BYTES >> 30} GiB of memory to compile; {_BUDGET}"
    sys.stdout.write(json.dumps({"error": problem, "sizes": found}))
