"""A window that shows one world while it runs: MuJoCo's viewer, where there is a display."""

import time
import warnings
from types import TracebackType

import glfw
import mujoco

from isaaclab_arena.sim.mujoco.backend import MujocoBackend


def has_display() -> bool:
    """Return whether windows can be opened here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(glfw.init())


class Window:
    """Shows one world of a batch, at most as fast as time passes.

    Args:
        backend: The worlds.
        env_id: Which of them is shown.

    Raises:
        RuntimeError: If no window can be opened.
    """

    def __init__(self, backend: MujocoBackend, env_id: int = 0) -> None:
        import mujoco.viewer  # noqa: PLC0415  fails on machines without a window system

        self._backend = backend
        self._env_id = env_id
        self._model = backend.model
        self._data = mujoco.MjData(backend.model)
        self._next_s = time.perf_counter()
        self._viewer = mujoco.viewer.launch_passive(self._model, self._data, show_left_ui=False, show_right_ui=False)

    def __enter__(self) -> "Window":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._viewer.close()

    @property
    def is_open(self) -> bool:
        """Whether the person has not closed it yet."""
        return self._viewer.is_running()

    def show(self, wait_s: float) -> None:
        """Show the world as it is now.

        Args:
            wait_s: How long after the picture before it this one is due [s].
        """
        time.sleep(max(0.0, self._next_s - time.perf_counter()))
        self._next_s = max(self._next_s, time.perf_counter()) + wait_s
        with self._viewer.lock():
            self._backend.batch.get_data(self._env_id, self._data)
            mujoco.mj_forward(self._model, self._data)
        self._viewer.sync()
