"""Start ranks with torchrunx, if the user has installed it; it is under the GPL-3 and no part of this package."""

import importlib
import logging
import sys
import time
import traceback
import uuid
from collections.abc import Sequence

from isaaclab_arena.distributed.context import set_torchrunx_log_directory, thread_variables
from isaaclab_arena.distributed.launching.launch_options import Launch
from isaaclab_arena.distributed.process import leave_process
from isaaclab_arena.errors import ConfigError, Problem

_LOG = logging.getLogger(__name__)
_MISTAKE = 2
_HAND_OVER_S = 0.5
_MISSING = (
    "torchrunx is not installed, and no part of this package, because it is under the GPL-3; "
    "install it with: pip install torchrunx==0.4.0, or leave the option out"
)


def run_ranks_over_torchrunx(launch: Launch) -> int:
    """Start the ranks through torchrunx, and wait for all of them.

    Unlike `run_ranks`, torchrunx checks its ranks every five seconds, does not say which one failed, and calls ``main``
    of the module in processes that it starts itself.

    Returns:
        0 for success, 2 for a user's mistake, 1 if a rank failed in any other way.

    Raises:
        ConfigError: If torchrunx is not installed.
    """
    try:
        torchrunx = importlib.import_module("torchrunx")
    except ImportError as error:
        raise ConfigError(Problem(_MISSING, key="--launcher")) from error
    wants_files = launch.wants_files and launch.log_directory is not None
    set_torchrunx_log_directory(str(launch.log_directory) if wants_files else "")
    _show_what_torchrunx_logs()
    launcher = torchrunx.Launcher(
        hostnames=["localhost"],
        workers_per_host=launch.num_processes,
        backend=None,
        # Ranks end with their launcher only if this variable of torchrun's names the launch.
        extra_env_vars={**thread_variables(), "TORCHELASTIC_RUN_ID": uuid.uuid4().hex, **launch.variables},
    )
    try:
        codes = launcher.run(call_main, launch.module, launch.arguments).results["localhost"]
    except Exception as error:  # noqa: BLE001  torchrunx raises whatever a rank raised
        reason = error.args[0] if error.args else type(error).__name__
        _LOG.error("a rank failed: %s", reason["message"] if isinstance(reason, dict) else reason)
        return 1
    return next((code for code in codes if code), 0)


def call_main(module: str, arguments: Sequence[str]) -> int:
    """Run a program as one rank, in a process that torchrunx has made, and return its exit code.

    After a failure the process ends immediately, because torchrunx notices nothing else soon.

    Args:
        module: The program's module, with a function ``main(arguments) -> int``.
        arguments: Its command line.
    """
    sys.argv = [module, *arguments]
    try:
        code = importlib.import_module(module).main(list(arguments))
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception:  # noqa: BLE001  torchrunx would hold on to the process
        traceback.print_exc()
        code = 1
    if code not in {0, _MISTAKE}:
        # torchrunx keeps the process of a failed rank alive, so the others would wait for it in a collective.
        time.sleep(_HAND_OVER_S)
        leave_process(code)
    return code


def _show_what_torchrunx_logs() -> None:
    """Show rank 0's output, which torchrunx turns into log records, unchanged and on its own stream."""
    logger = logging.getLogger("torchrunx")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for stream, wanted in (
        (sys.stdout, lambda level: level < logging.WARNING),
        (sys.stderr, lambda level: level >= logging.WARNING),
    ):
        handler = logging.StreamHandler(stream)
        handler.addFilter(lambda record, wanted=wanted: wanted(record.levelno))
        logger.addHandler(handler)
