"""Put what a training run has learned where others find it: checkpoint, settings, measures, curves and a card.

Usage: python benchmarks/publish_policy.py RUN_FOLDER models/NAME [--title "..."]
"""

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import tyro
import yaml

mpl.use("Agg")
import matplotlib.pyplot as plt

MEASURES = (
    "Train/mean_reward",
    "Train/mean_episode_length",
    "Train/success_rate",
    "Train/lost_rate",
    "Policy/mean_std",
    "Loss/learning_rate",
    "Perf/total_steps",
)
"""What is kept of every iteration's measures, beside everything of evaluations."""
EVALUATE = "python -m isaaclab_arena.evaluation.policy_runner --policy_type rsl_rl --num_episodes 200"
SHOWN = ("isaaclab-arena-mujoco", "torch", "mujoco", "rsl-rl-lib")
"""Packages whose versions the card tells."""
_PLACES = ("--log_root", "--run_directory")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to publish.

    Attributes:
        title: First line of the card.
        points: How many iterations of the measures are kept.
    """

    title: str = ""
    points: int = 200


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run's folder tells.

    Attributes:
        settings: All that was asked for.
        terms: What the policy sees.
        rows: Its measures: iteration, name, value.
        best: Iterations of the best checkpoint.
        wall_s: Time spent on samples and learning up to the end [s].
    """

    settings: dict[str, Any]
    terms: list[str]
    rows: list[tuple[int, str, float]]
    best: int
    wall_s: float


def read_run(folder: Path) -> Run:
    """Read a run's folder."""
    settings = yaml.safe_load((folder / "params" / "train.yaml").read_text(encoding="utf-8"))
    agent = yaml.safe_load((folder / "params" / "agent.yaml").read_text(encoding="utf-8"))
    with (folder / "progress.csv").open(encoding="utf-8") as file:
        rows = [(int(row["step"]), row["measure"], float(row["value"])) for row in csv.DictReader(file)]
    checkpoint = torch.load(folder / "model_best.pt", map_location="cpu", weights_only=True)
    spent = {"Perf/collection_time", "Perf/learning_time"}
    return Run(
        settings=settings,
        terms=[term for terms in agent["observation_terms"].values() for term in terms],
        rows=rows,
        best=int(checkpoint["iter"]),
        wall_s=sum(value for _, name, value in rows if name in spent),
    )


def thinned(rows: Sequence[tuple[int, str, float]], points: int) -> list[tuple[int, str, float]]:
    """Return the measures worth keeping, of about so many iterations."""
    every = max(1, max(step for step, _, _ in rows) // points)
    return [row for row in rows if row[1].startswith("Eval/") or (row[1] in MEASURES and row[0] % every == 0)]


def draw(run: Run, path: Path) -> None:
    """Draw success and reward over control steps."""
    per_iteration = run.settings["num_envs"] * run.settings["agent"]["num_steps_per_env"] * run.settings["world_size"]

    def points(name: str) -> tuple[list[float], list[float]]:
        found = [(step * per_iteration / 1e6, value) for step, each, value in run.rows if each == name]
        return [x for x, _ in found], [y for _, y in found]

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), dpi=110)
    left.plot(*points("Train/success_rate"), linewidth=0.8, alpha=0.6, label="while it explores")
    evaluated = next((name for _, name, _ in run.rows if name.endswith("/success_rate") and "Eval" in name), None)
    if evaluated is not None:
        left.plot(*points(evaluated), "o-", linewidth=1.2, markersize=4, label="evaluated")
    left.set_ylim(-0.02, 1.02)
    left.set_ylabel("success rate")
    left.legend(frameon=False)
    right.plot(*points("Train/mean_reward"), linewidth=0.8)
    right.set_ylabel("mean sum of rewards")
    for axes in (left, right):
        axes.set_xlabel("control steps [millions]")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def card(run: Run, title: str, name: str) -> str:
    """Return the text of the card."""
    settings = run.settings
    agent, versions = settings["agent"], settings["versions"]
    num_ranks = settings["world_size"]
    trained_in, evaluated_in = settings["env"], {**settings["env"], **settings["evaluation"]["env"]}
    env_steps = run.best * settings["num_envs"] * agent["num_steps_per_env"] * num_ranks
    ranks = "one process" if num_ranks == 1 else f"{num_ranks} ranks"
    return "\n".join(
        [
            f"# {title}",
            "",
            "| | |",
            "| --- | --- |",
            f"| environment | `{environment(settings, trained_in)}` |",
            f"| sees | {', '.join(f'`{term}`' for term in run.terms)} |",
            f"| algorithm | {agent['algorithm']['class_name']}, seed {agent['seed']} |",
            f"| rows | {settings['num_envs']}, {ranks} |",
            f"| networks | hidden layers of {agent['actor']['hidden_dims']} |",
            f"| experience | {env_steps / 1e6:.1f} million control steps, {run.best} iterations |",
            f"| time | {run.wall_s / 60:.0f} minutes for all iterations on a CPU that had other things to do too |",
            f"| versions | {', '.join(f'{package} {versions[package]}' for package in SHOWN if package in versions)} |",
            "",
            "Made by",
            "",
            *(f"    python -m {without_places(line.split())}" for line in settings["command_lines"]),
            "",
            "![Success and reward](curves.png)",
            "",
            "[Its success in 200 episodes](../../benchmarks/results/trained_policies.md) that training never saw;",
            "`params/` holds every setting, `progress.csv` some of the measures.",
            "Evaluate it with",
            "",
            f"    {EVALUATE} {environment(settings, evaluated_in)} --num_envs 50 --checkpoint_path models/{name}",
            "",
        ]
    )


def environment(settings: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return an environment and its options as words of a command line."""
    return " ".join([settings["environment"], *(f"--{key} {value}" for key, value in options.items())])


def without_places(words: Sequence[str]) -> str:
    """Return a command line without the options that say where files go; a run that goes on is ``RUN``."""
    kept: list[str] = []
    before = ""
    for word in words:
        option = word.partition("=")[0]
        if before == "--resume":
            kept.append("RUN")
        elif option not in _PLACES and before not in _PLACES:
            kept.append(word)
        before = word
    return " ".join(kept)


def publish(folder: Path, target: Path, options: Options) -> None:
    """Fill the target's folder."""
    run = read_run(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / "params").mkdir(exist_ok=True)
    for name in ("agent.yaml", "env.yaml"):
        shutil.copyfile(folder / "params" / name, target / "params" / name)
    lines = [without_places(line.split()) for line in run.settings["command_lines"]]
    settings = yaml.safe_dump({**run.settings, "command_lines": lines}, sort_keys=False, width=120)
    (target / "params" / "train.yaml").write_text(settings, encoding="utf-8")
    for old in target.glob("model_*.pt"):
        old.unlink()
    shutil.copyfile(folder / "model_best.pt", target / f"model_{run.best}.pt")
    with (target / "progress.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "measure", "value"])
        writer.writerows((step, name, f"{value:.5g}") for step, name, value in thinned(run.rows, options.points))
    draw(run, target / "curves.png")
    title = options.title or f"A policy for {run.settings['environment']}"
    (target / "README.md").write_text(card(run, title, target.name), encoding="utf-8")


def main(folder: tyro.conf.Positional[Path], target: tyro.conf.Positional[Path], options: Options) -> None:
    """Publish a run.

    Args:
        folder: The run's folder.
        target: Where it goes.
        options: What to publish.
    """
    publish(folder, target, options)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
