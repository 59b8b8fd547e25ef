"""Isaac Lab Arena's command-line flags: other names of our options, flags without effect, and refused flags.

``docs/users/arena.md`` lists them; its tests hold it equal to these tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from isaaclab_arena.config.options import Count

ALIASES = {
    "experiment_config": "eval_jobs_config",
    "experiment_output_directory": "output_dir",
    "video_base_dir": "output_base_dir",
    "video_dir": "output_base_dir",
    "video": "record_viewport_video",
    "camera_video": "record_camera_video",
    "visualizer": "viz",
}
"""Names that other versions of Isaac Lab Arena give to options of ours."""

DATAGEN = "pictures are recorded by --record_observations all with --enable_cameras, without flow and normals"
"""The way to collect data for training on pictures, which differs from Arena's."""

REFUSED = {
    "external_environment_class_path": (
        "classes for Isaac Lab cannot be built without it; an environment of your own is declared by the entry point "
        "isaaclab_arena.environments, or named gym:<module>:<id>"
    ),
    "remote_kill_on_exit": "a policy server may serve others too; stop it where it was started",
    "mimic": "no demonstrations are generated from others here",
    "no_solve_relations": "tasks here always place their objects",
    "collect_datagen": DATAGEN,
    "datagen_output_dir": DATAGEN,
    "datagen_width": DATAGEN,
    "datagen_height": DATAGEN,
    "datagen_camera_position": DATAGEN,
    "datagen_camera_target": DATAGEN,
}
"""Flags for what this program does not do, each with the reason: refused, never ignored."""


OTHER_POLICIES = {
    "isaaclab_arena_openpi": (
        "asks a server of openpi; policy_type: openpi_remote does that here, with remote_host, remote_port, images and "
        "states (docs/bring_your_policy/openpi.md)"
    )
}
"""Packages of policies of Isaac Lab Arena that are not needed here, each with its replacement."""


def own_name(option: str) -> str:
    """Return this project's name of an option (without hyphens) that may be written as in Isaac Lab Arena."""
    name = option.replace("-", "_")
    return ALIASES.get(name, name)


def is_other_physics(preset: object) -> bool:
    """True if a preset requests other physics than Newton, whose solver is MuJoCo-Warp."""
    return not (isinstance(preset, str) and preset.lower().startswith(("newton", "mjwarp", "mujoco")))


@dataclass(frozen=True, kw_only=True)
class FlagsWithoutEffect:
    """Options that are accepted for Isaac Lab Arena's command lines and have no effect."""

    headless: bool = False
    """Accepted for Isaac Lab Arena's command lines; nothing here opens a window."""
    viz: str | None = None
    """Accepted for Isaac Lab Arena's command lines; nothing here opens a window."""
    distributed: bool = False
    """Accepted for Isaac Lab Arena's command lines; the launcher's variables say it."""
    record_trajectories: bool = False
    """Accepted for Isaac Lab Arena's command lines; states and actions are recorded anyway."""
    presets: str | None = None
    """Accepted for Isaac Lab Arena's command lines where it is newton, whose solver MuJoCo-Warp is."""
    chunk_size: Count | None = None
    """Accepted for Isaac Lab Arena's command lines; memory is let go of after every job, in one process."""
    env_spacing: float | None = None
    """Accepted for Isaac Lab Arena's command lines; environments here are not laid out in one world."""
    serve_evaluation_report: bool = False
    """Accepted for Isaac Lab Arena's command lines; report.html needs no server, and its path is shown last."""
    evaluation_report_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Accepted for Isaac Lab Arena's command lines; report.html needs no server."""
    disable_fabric: bool = False
    """Accepted for Isaac Lab Arena's command lines; there is no USD stage here."""
    disable_pinocchio: bool = False
    """Accepted for Isaac Lab Arena's command lines; nothing here needs it."""

    def contradictions(self, *, records_datasets: bool, writes_report: bool) -> Iterator[tuple[str, bool, str]]:
        """Yield for each check the option, a flag that is True if it is wrong, and the problem."""
        yield "record_trajectories", self.record_trajectories and not records_datasets, "contradicts --no_dataset"
        served = self.serve_evaluation_report and not writes_report
        yield "serve_evaluation_report", served, "contradicts --no_report"
        wrong = self.presets is not None and is_other_physics(self.presets)
        yield "presets", wrong, f"there is no '{self.presets}' here; MuJoCo or MuJoCo-Warp simulates every environment"
