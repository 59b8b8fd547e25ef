"""Loads and makes once what programs would load and make anew in each process."""

import gc
import importlib
import sys
import weakref
from contextlib import nullcontext, suppress

_PRELOADED = (
    "isaaclab_arena.evaluation.eval_runner", "isaaclab_arena.evaluation.policy_runner", "isaaclab_arena.evaluation.run",
    "isaaclab_arena.cli.main", "isaaclab_arena.environments.catalog", "torch.distributed.run", "mujoco", "mujoco.batch",
    "pandas", "pyarrow.parquet", "scipy.stats", "h5py", "rich.live", "tyro", "gymnasium",
    "isaaclab_arena.training.train", "isaaclab_arena.training.learner",
    "isaaclab_arena_gr00t.policy.gr00t_closedloop_policy", "gr00t.policy.gr00t_policy",
    "isaaclab_arena.sim.warp_backend", "isaaclab_arena.sim.warp_cameras",
    "isaaclab_arena.environments.arena.builder", "isaaclab_arena.environments.arena.builder",
    "isaaclab_arena.policy.scripted", "isaaclab_arena.results.merge", "isaaclab_arena.results.console",
    "isaaclab_arena.report.writing", "isaaclab_arena.evaluation.rerun",
    "pyarrow.dataset", "typeguard", "tyro._backends._tyro_backend", "torch.export", "torch.onnx._internal.exporter",
    "onnxscript.function_libs.torch_lib", "networkx",
    "encodings.utf_8_sig", "isaaclab_arena.environments.tasks.cartpole", "isaaclab_arena.policy.zero_action_policy",
    "pandas.core.arrays.arrow.extension_types", "pandas.core.methods.to_dict", "pandas.io.formats.csvs",
    "pydantic.dataclasses", "rich._emoji_codes", "tyro.constructors._struct_spec_attrs",
    "tyro.constructors._struct_spec_dataclass", "tyro.constructors._struct_spec_flax",
    "tyro.constructors._struct_spec_ml_collections", "tyro.constructors._struct_spec_msgspec",
    "tyro.constructors._struct_spec_pydantic",
)  # fmt: skip
_READ_FROM_JSON = (
    ("isaaclab_arena.storage.ledger", "Attempt"),
    ("isaaclab_arena.storage.commits", "CommitLine"),
    ("isaaclab_arena.storage.ledger", "JobReport"),
    ("isaaclab_arena.storage.ledger", "RunPlan"),
    ("isaaclab_arena.storage.contents", "Contents"),
)


def warm_up() -> None:
    """Make this process one whose forked children find as much as can be done."""
    gc.disable()
    for name in _PRELOADED:
        # What a library keeps to itself, another release of it may lack.
        with suppress(ModuleNotFoundError) if "._" in name else nullcontext():
            importlib.import_module(name)
    adapter = importlib.import_module("isaaclab_arena.storage.atomic").adapter
    for module, name in _READ_FROM_JSON:
        adapter(vars(sys.modules[module])[name])
    # Every run ends with a page, whose templates take longer to compile than to fill in.
    environment = importlib.import_module("isaaclab_arena.report.writing").templates()
    for name in environment.list_templates(extensions=["j2"]):
        environment.get_template(name)
    _spare_launchers_a_search()
    # What torch registered goes with the process; taking it back one by one would write to memory that all share.
    for finalizer in list(vars(weakref.finalize)["_registry"]):
        finalizer.atexit = False
    gc.freeze()
    gc.enable()
    # Whoever asks first counts what is frozen, which would take each child a tenth of a second.
    with importlib.import_module("isaaclab_arena.garbage").without_collecting():
        pass


def _spare_launchers_a_search() -> None:
    """Name the methods of torch's events without asking every module that is loaded whether they are from there."""
    rendezvous = importlib.import_module("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
    vars(rendezvous)["get_method_name"] = lambda depth=2: sys._getframe(depth).f_code.co_name
