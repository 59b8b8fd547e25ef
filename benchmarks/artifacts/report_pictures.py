"""Make the documentation's pictures of report.html: of the quickstart, of a sweep of variations and of a comparison.

Evaluates each run, films some of its episodes, and takes a picture of its page with a Chromium without a window. Look
at the pictures before committing them.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from PIL import Image

from benchmarks import ROOT
from benchmarks.harness.measure import run
from benchmarks.harness.workers import module
from isaaclab_arena.errors import ArenaError

WIDTH = 1200
FRONT_HEIGHT = 800  # of the picture in the README, beside tasks.webp
MOST_BYTES = 150_000

_COLOURS = 160
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

COMPARISON = {
    "defaults": {
        "num_episodes": 60,
        "policy_type": "scripted",
        "arena_env_args": {"environment": "lift_object", "object": "cube", "num_envs": 10},
        "variations": {
            "cube": {"mass": {"enabled": True}, "friction": {"enabled": True}, "size": {"enabled": True}},
            "action.noise": {"enabled": True, "sampler_cfg": {"low": 0.0, "high": 0.04}},
        },
    },
    "jobs": [
        {"name": "full-speed", "policy_config_dict": {"speed": 1.0}},
        {"name": "half-speed", "policy_config_dict": {"speed": 0.5}},
    ],
}
"""Two speeds of one script, whose actions are disturbed."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    output: Path = ROOT / "docs" / "images"  # Directory of report_<run>.png.
    runs: Path | None = None  # Directory of the runs; those that are there are not run again.


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run whose page is shown."""

    name: str  # Its name, which is the page's title.
    jobs: Path  # Its job file.
    height: int  # Pixels of the page that are shown, from the top.
    films: tuple[str, ...]  # Arguments of ``isaaclab-arena film``.
    baseline: str | None = None  # The job that the others are compared with, None for none.


def main(options: Options) -> None:
    """Make the pictures."""
    with tempfile.TemporaryDirectory(prefix="report_pictures_") as place:
        runs = options.runs or Path(place)
        runs.mkdir(parents=True, exist_ok=True)
        comparison = runs / "comparison.yaml"
        comparison.write_text(yaml.safe_dump(COMPARISON, sort_keys=False))
        for shown in shown_runs(comparison):
            picture = options.output / f"report_{shown.name}.png"
            directory = runs / shown.name
            if not directory.is_dir():
                command("run", "--eval_jobs_config", str(shown.jobs), "--output_dir", str(directory), "--no_report")
                command("film", str(directory), *shown.films)
            if shown.baseline is not None:
                # Its exit code is the verdict.
                command("compare", str(directory), "--baseline", shown.baseline, codes=(0, 1, 4))
            command("report", str(directory))
            photograph(directory / "report.html", picture, height=shown.height)
            if shown.name == "quickstart":
                photograph(directory / "report.html", options.output / "report_front.png", height=FRONT_HEIGHT)
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


def shown_runs(comparison: Path) -> tuple[Shown, ...]:
    """Return the runs, one with the job file of two policies."""
    return (
        Shown(name="quickstart", jobs=ROOT / "jobs" / "quickstart.json", height=2330, films=("--episodes", "0-1")),
        Shown(name="variations", jobs=ROOT / "jobs" / "variations.yaml", height=1540, films=("--episodes", "failures")),
        Shown(
            name="comparison",
            jobs=comparison,
            height=1600,
            films=("--episodes", "discordant", "--baseline", "half-speed"),
            baseline="half-speed",
        ),
    )


def photograph(page: Path, picture: Path, *, height: int) -> None:
    """Write the upper part of a page as PNG."""
    browser = next((path for path in map(shutil.which, _BROWSERS) if path is not None), None)
    if browser is None:
        raise ArenaError(f"none of {', '.join(_BROWSERS)} is installed")
    flags = ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=4000")
    size = f"--window-size={WIDTH},{height}"
    subprocess.run(
        [browser, *flags, size, f"--screenshot={picture}", page.absolute().as_uri()], check=True, capture_output=True
    )
    with Image.open(picture) as image:
        image.convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )
    if picture.stat().st_size > MOST_BYTES:
        raise ArenaError(f"{picture} has {picture.stat().st_size} bytes; at most {MOST_BYTES} are wanted")


def command(*arguments: str, codes: Sequence[int] = (0,)) -> None:
    """Run a command of isaaclab-arena, and require one of some exit codes."""
    finished = subprocess.run(module("isaaclab_arena.cli", *arguments), cwd=ROOT, check=False)
    if finished.returncode not in codes:
        raise ArenaError(f"isaaclab-arena {arguments[0]} ended with {finished.returncode}")


if __name__ == "__main__":
    run(main, Options)
