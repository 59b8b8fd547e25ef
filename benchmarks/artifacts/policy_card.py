"""Publish the policy of a training run: checkpoint, settings, measures, curves and a card.

Usage: python -m benchmarks.artifacts.policy_card RUN_DIRECTORY models/NAME [--title "..."]
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
"""Measures of iterations to keep, beside all of evaluations."""
EVALUATE = "python -m isaaclab_arena.evaluation.policy_runner --policy_type rsl_rl --num_episodes 200"
SPENT_S = ("Perf/collection_time", "Perf/learning_time")
SHOWN = ("isaaclab-arena-mujoco", "torch", "mujoco", "rsl-rl-lib")
"""Packages with their versions on the card."""
_PLACES = ("--log_root", "--run_directory")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the program."""

    title: str = ""  # First line of the card.
    points: int = 200  # Iterations of the measures to keep.


@dataclass(frozen=True, kw_only=True)
class Run:
    """Content of a run's directory."""

    settings: dict[str, Any]  # All settings of the training.
    terms: list[str]  # Observation terms of the policy.
    measures: list[tuple[int, str, float]]  # Iteration, name, value.
    best: int  # Iterations of the best checkpoint.

    def steps(self, iterations: int) -> float:
        """Return the control steps of some iterations, in millions."""
        settings = self.settings
        per_iteration = settings["num_envs"] * settings["agent"]["num_steps_per_env"] * settings["world_size"]
        return iterations * per_iteration / 1e6


def read_run(directory: Path) -> Run:
    """Read a run's directory."""
    settings = yaml.safe_load((directory / "params" / "train.yaml").read_text(encoding="utf-8"))
    agent = yaml.safe_load((directory / "params" / "agent.yaml").read_text(encoding="utf-8"))
    with (directory / "progress.csv").open(encoding="utf-8") as file:
        measures = [(int(line["step"]), line["measure"], float(line["value"])) for line in csv.DictReader(file)]
    checkpoint = torch.load(directory / "model_best.pt", map_location="cpu", weights_only=True)
    terms = [term for terms in agent["observation_terms"].values() for term in terms]
    return Run(settings=settings, terms=terms, measures=measures, best=int(checkpoint["iter"]))


def draw(run: Run, path: Path) -> None:
    """Draw success and reward over control steps."""

    def points(name: str) -> tuple[list[float], list[float]]:
        found = [(step, value) for step, each, value in run.measures if each == name]
        return [run.steps(step) for step, _ in found], [value for _, value in found]

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), dpi=110)
    left.plot(*points("Train/success_rate"), linewidth=0.8, alpha=0.6, label="while it explores")
    evaluated = next((name for _, name, _ in run.measures if name.endswith("/success_rate") and "Eval" in name), None)
    if evaluated is not None:
        left.plot(*points(evaluated), "o-", linewidth=1.2, markersize=4, label="evaluated")
    left.set(ylim=(-0.02, 1.02), ylabel="success rate")
    left.legend(frameon=False)
    right.plot(*points("Train/mean_reward"), linewidth=0.8)
    right.set(ylabel="mean sum of rewards")
    for axes in (left, right):
        axes.set(xlabel="control steps [millions]")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def card(run: Run, title: str, name: str) -> str:
    """Return the text of the card."""
    settings, agent, versions = run.settings, run.settings["agent"], run.settings["versions"]
    num_ranks = settings["world_size"]
    minutes = sum(value for _, measure, value in run.measures if measure in SPENT_S) / 60
    facts = {
        "environment": f"`{environment(settings, settings['env'])}`",
        "sees": ", ".join(f"`{term}`" for term in run.terms),
        "algorithm": f"{agent['algorithm']['class_name']}, seed {agent['seed']}",
        "env slots": f"{settings['num_envs']}, {'one process' if num_ranks == 1 else f'{num_ranks} ranks'}",
        "networks": f"hidden layers of {agent['actor']['hidden_dims']}",
        "experience": f"{run.steps(run.best):.1f} million control steps, {run.best} iterations",
        "time": f"{minutes:.0f} minutes for all iterations on a CPU that had other things to do too",
        "versions": ", ".join(f"{package} {versions[package]}" for package in SHOWN if package in versions),
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    commands = "\n".join(f"    python -m {without_places(line.split())}" for line in settings["command_lines"])
    evaluated = environment(settings, {**settings["env"], **settings["evaluation"]["env"]})
    return f"""\
# {title}

| | |
| --- | --- |
{table}

Made by

{commands}

![Success and reward](curves.png)

[Its success in 200 episodes](../../benchmarks/results/trained_policies.md) that training never saw;
`params/` holds every setting, `progress.csv` some of the measures.
Evaluate it with

    {EVALUATE} {evaluated} --num_envs 50 --checkpoint_path models/{name}
"""


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


def main(directory: tyro.conf.Positional[Path], target: tyro.conf.Positional[Path], options: Options) -> None:
    """Publish a run.

    Args:
        directory: The run's directory.
        target: Directory of the published policy.
        options: What to publish.
    """
    run = read_run(directory)
    target.mkdir(parents=True, exist_ok=True)
    (target / "params").mkdir(exist_ok=True)
    for name in ("agent.yaml", "env.yaml"):
        shutil.copyfile(directory / "params" / name, target / "params" / name)
    lines = [without_places(line.split()) for line in run.settings["command_lines"]]
    settings = yaml.safe_dump({**run.settings, "command_lines": lines}, sort_keys=False, width=120)
    (target / "params" / "train.yaml").write_text(settings, encoding="utf-8")
    for old in target.glob("model_*.pt"):
        old.unlink()
    shutil.copyfile(directory / "model_best.pt", target / f"model_{run.best}.pt")
    with (target / "progress.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "measure", "value"])
        every = max(1, max(step for step, _, _ in run.measures) // options.points)
        for step, name, value in run.measures:
            if name.startswith("Eval/") or (name in MEASURES and step % every == 0):
                writer.writerow((step, name, f"{value:.5g}"))
    draw(run, target / "curves.png")
    title = options.title or f"A policy for {run.settings['environment']}"
    (target / "README.md").write_text(card(run, title, target.name), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
