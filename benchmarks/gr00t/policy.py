"""Measure the cost of a GR00T policy, on a machine without other programs.

Six subjects, each with a table of its own: one query by batch size, precision and device; the start up to the first
answer; a server instead of a model in the same process; the time and the memory of a job; and the env slots of its
queries. Measurements take turns within one run, and figures are medians. Quote CPU seconds on a noisy machine. Without
``--model_path`` the checkpoint is a fresh one with random weights: the time of an answer does not depend on them.
"""

import dataclasses
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gr00t.policy.gr00t_policy import Gr00tPolicy

from arena_wire.gr00t import pack
from benchmarks import ROOT
from benchmarks.gr00t.checkpoint import modalities, save_random_checkpoint, shown, write_policy_yaml
from benchmarks.gr00t.start import start_table
from benchmarks.harness.environments import Tally, build, tally
from benchmarks.harness.measure import Page, PageOptions, Timing, in_turn, markdown_table, median, ratios, run, timed
from benchmarks.harness.runs import Watched, evaluate, job_results, one_job
from benchmarks.harness.workers import cpu_s
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena_gr00t.config import (
    ClosedloopPolicyArgs,
    Dimensions,
    Gr00tClosedloopPolicyArgs,
    Modality,
    read_policy_config,
)
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import (
    CPU_SLOTS_PER_QUERY,
    ClosedloopPolicy,
    Gr00tClosedloopPolicy,
)
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import (
    Gr00tRemoteClosedloopPolicy,
    Gr00tRemoteClosedloopPolicyArgs,
)

WARM_UP = 2
_SERVER_START_S = 120.0
_ADDRESS = re.compile(r"on tcp://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Query(Timing):
    """Resources of one query."""

    server_cpu_s: float = 0.0  # CPU time of the server [s].


def timed_query(call: Callable[[], Any], server_pid: int | None = None) -> Query:
    """Time a call. Its answer is arrays in memory, so a GPU has finished by then."""
    before_s = cpu_s(server_pid) if server_pid else 0.0
    took = timed(call)
    return Query(**vars(took), server_cpu_s=cpu_s(server_pid) - before_s if server_pid else 0.0)


def _milliseconds(queries: Sequence[Query], *figures: str) -> list[str]:
    return [f"{1000 * median(queries, figure):.1f}" for figure in figures]


def latency_table(
    yaml: str, *, devices: Sequence[str], batch_sizes: Sequence[int], repetitions: int, compiled_on: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the table of one query of the model."""
    config = read_policy_config(yaml)
    calls: dict[tuple[str, str, int], Callable[[], Query]] = {}
    for device in devices:
        for precision in ("float32", "bfloat16"):
            for variant in (precision, f"{precision}, compiled")[: 1 + (device in compiled_on)]:
                dtype = getattr(torch, precision)
                policy = Gr00tPolicy(config.embodiment_tag, config.model_path, device=device, dtype=dtype)
                if variant != precision:
                    policy.compile()
                for batch_size in batch_sizes:
                    observation = shown(policy.get_modality_config(), policy.get_dimensions(), batch_size, config)
                    ask = partial(policy.get_action, observation, {"noise_seeds": list(range(batch_size))})
                    calls[device, variant, batch_size] = partial(timed_query, ask)
    taken = in_turn(calls, repetitions, warm_up=WARM_UP)
    table = []
    for (device, variant, batch_size), queries in taken.items():
        per_slot = 1000 * median(queries, "wall_s") / batch_size
        against = statistics.median(ratios(queries, taken[device, "float32", batch_size], "wall_s"))
        ms = _milliseconds(queries, "wall_s", "cpu_s")
        table.append((device, variant, str(batch_size), *ms, f"{per_slot:.2f}", f"{against:.2f}"))
    heading = ("device", "weights", "env slots", "ms", "CPU ms", "ms a slot", "times float32")
    return markdown_table(heading, table, words=2)


@contextmanager
def serving(model_path: str, embodiment_tag: str, device: str, directory: Path) -> Iterator[tuple[int, int]]:
    """Serve a checkpoint in a process of its own in a ``with`` block, with the process number and the port."""
    words = ["--model_path", model_path, "--embodiment_tag", embodiment_tag, "--device", device, "--port", "0"]
    program = [sys.executable, "-c", _SERVER, str(torch.get_num_threads()), *words]
    log = directory / "server.log"
    with log.open("wb") as stream, subprocess.Popen(program, cwd=ROOT, stderr=stream) as process:
        try:
            deadline = time.monotonic() + _SERVER_START_S
            while (found := _ADDRESS.search(output := log.read_text(encoding="utf-8"))) is None:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError(f"the server does not listen: {output[-2000:]}")
                time.sleep(0.05)
            yield process.pid, int(found.group(1))
        finally:
            process.terminate()


_SERVER = """
import sys
import torch
from gr00t.eval.run_gr00t_server import main
torch.set_num_threads(int(sys.argv[1]))
sys.exit(main(sys.argv[2:]))
"""
"""The server with as many threads as the model has here."""


def remote_table(
    yaml: str, directory: Path, *, devices: Sequence[str], batch_sizes: Sequence[int], repetitions: int
) -> list[str]:
    """Return the lines of the table of queries to a server beside queries to the same checkpoint in this process."""
    config = read_policy_config(yaml)
    table = []
    for device in devices:
        here = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, policy_device=device))
        with serving(config.model_path, config.embodiment_tag, device, directory) as (pid, port):
            address: dict[str, Any] = {"remote_host": "127.0.0.1", "remote_port": port}
            served = Gr00tRemoteClosedloopPolicy(
                Gr00tRemoteClosedloopPolicyArgs(policy_config_yaml_path=yaml, **address)
            )
            dimensions = here.dimensions() or {}
            observations = {size: shown(here.modality_config(), dimensions, size, config) for size in batch_sizes}
            calls = {
                (where, size): partial(timed_query, partial(policy.query, observation, list(range(size))), pid)
                for size, observation in observations.items()
                for where, policy in (("here", here), ("served", served))
            }
            taken = in_turn(calls, repetitions, warm_up=WARM_UP)
            served.close()
        here.close()
        for size, observation in observations.items():
            ours, theirs = taken["here", size], taken["served", size]
            more_ms = 1000 * statistics.median(b.wall_s - a.wall_s for a, b in zip(ours, theirs, strict=True))
            table.append(
                (
                    *(device, str(size), f"{len(pack({'observation': observation})) / 1000:.0f}"),
                    *(*_milliseconds(ours, "wall_s"), *_milliseconds(theirs, "wall_s"), f"{more_ms:.1f}"),
                    f"{statistics.median(ratios(theirs, ours, 'wall_s')):.2f}",
                    *(*_milliseconds(ours, "cpu_s"), *_milliseconds(theirs, "cpu_s", "server_cpu_s")),
                )
            )
    milliseconds = ("here ms", "served ms", "more ms", "times", "CPU ms here", "client", "server")
    return markdown_table(("device", "env slots", "request kB", *milliseconds), table)


PHASES = ("policy", "render", "simulate", "record", "idle")
GR00T, ZERO = "gr00t_closedloop", "zero_action"


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """Size of a job."""

    environment: str
    num_envs: int
    episodes_per_slot: int
    camera_size: int = 64  # Edge of the pictures [px].
    asks_every_step: bool = False  # Asks the model in every control step instead of once for each chunk.
    backend: str = "auto"
    num_threads: int = 1  # Threads of physics and pictures.


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the program with one job."""

    build_s: float  # Building environment and policy [s].
    phases_s: dict[str, float]  # Phase to its wall time [s]; ``idle`` is the time of no other phase.
    env_steps: int  # Control steps of all env slots.
    process: Watched  # Resources of the whole process.

    @property
    def running_s(self) -> float:
        """Wall time of the job without building environment and policy [s]."""
        return sum(self.phases_s.values())

    @property
    def speed(self) -> float:
        """Control steps of all env slots per second of this time."""
        return self.env_steps / self.running_s

    @property
    def cpu_s(self) -> float:
        """CPU time of the whole process [s]."""
        return self.process.cpu_s


def run_job(
    directory: Path, yaml: str, size: JobSize, policy_type: str, device: str, more_options: Sequence[str] = ()
) -> Run:
    """Run a job in a process of its own, with one thread of torch."""
    cameras = {"enable_cameras": True, "camera_size": size.camera_size, "backend": size.backend}
    arguments = {"environment": size.environment, "num_envs": size.num_envs, **cameras}
    ensemble = {"temporal_ensemble_coeff": 0.01} if size.asks_every_step else {}
    policy = {"policy_config_yaml_path": yaml, **ensemble} if policy_type == GR00T else {}
    document = one_job(arguments, policy_type, size.num_envs * size.episodes_per_slot, policy)
    options = ("--device", device, "--policy_device", device, "--num_threads", str(size.num_threads), *more_options)
    process = evaluate(directory, document, *options)
    (found,) = job_results(directory)
    phases_s = {phase: found[f"{phase}_s"] for phase in PHASES}
    return Run(build_s=found["build_s"], phases_s=phases_s, env_steps=found["env_steps"], process=process)


Runs = dict[tuple[str, int, str], list[Run]]
"""Device, env slots and policy to their runs."""


def run_jobs(directory: Path, yaml: str, sizes: Sequence[JobSize], *, devices: Sequence[str], repetitions: int) -> Runs:
    """Run the jobs of all sizes with either policy in turn."""
    numbers = count()

    def once(size: JobSize, policy_type: str, device: str) -> Run:
        return run_job(directory / f"run_{next(numbers)}", yaml, size, policy_type, device)

    calls = {
        (device, size.num_envs, policy_type): partial(once, size, policy_type, device)
        for device in devices
        for size in sizes
        for policy_type in (GR00T, ZERO)
    }
    return in_turn(calls, repetitions)


def time_table(runs: Runs) -> list[str]:
    """Return the lines of the table of phases."""
    table = []
    for (device, num_envs, policy_type), each in runs.items():
        shares = (statistics.median(run.phases_s[phase] / run.running_s for run in each) for phase in PHASES)
        table.append(
            (
                *(device, f"`{policy_type}`", str(num_envs)),
                *(f"{median(each, figure):.1f}" for figure in ("build_s", "running_s")),
                *(f"{100 * share:.1f} %" for share in shares),
                *(f"{median(each, 'speed'):,.0f}", f"{median(each, 'cpu_s'):.1f}"),
            )
        )
    shares = ("rest" if phase == "idle" else phase for phase in PHASES)
    seconds = ("build s", "run s", *shares, "control steps per s", "CPU s, whole process")
    heading = ("device", "job with", "env slots", *seconds)
    return markdown_table(heading, table, words=2)


def memory_table(runs: Runs) -> list[str]:
    """Return the lines of the table of peaks."""
    table = []
    for device, num_envs in dict.fromkeys((device, num_envs) for device, num_envs, _ in runs):
        processes = [[run.process for run in runs[device, num_envs, policy]] for policy in (GR00T, ZERO)]
        ours, zero = (median(each, "peak_mb") for each in processes)
        gpu = (f"{median(each, 'gpu_mb'):.0f}" if device != "cpu" else "" for each in processes)
        table.append((device, str(num_envs), f"{ours:.0f}", f"{zero:.0f}", f"{ours - zero:.0f}", *gpu))
    memory = (f"MB with `{GR00T}`", f"with `{ZERO}`", "more", "GPU MB", f"with `{ZERO}`")
    return markdown_table(("device", "env slots", *memory), table)


HEADING = ("env slots", "episodes", "steps of an episode", "slots needed", "asked for on a CPU", "all slots", "saved")
_DIMENSIONS = {"state": {"arm": 7, "gripper": 2}, "action": {"arm": 7, "gripper": 1}}


@dataclass(kw_only=True)
class QueryCount:
    """The env slots of a policy's queries."""

    slots_needed: int = 0  # env slots that needed a chunk
    slots_asked: int = 0  # env slots in the queries, padding included
    slots_of_all: int = 0  # env slots if each query asked for all of them


class CountedQueries(ClosedloopPolicy[ClosedloopPolicyArgs]):
    """Counts queries as the GR00T policies make them, without a model; it plays the scripted policy's actions."""

    def __init__(self, config: ClosedloopPolicyArgs) -> None:
        super().__init__(config)
        self._driver = ScriptedPolicy()
        self._modalities: dict[str, Any] = modalities()
        self.count = QueryCount()

    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Answer with zeros, which are never played."""
        del observation
        self.count.slots_asked += len(noise_seeds)
        shape = (len(noise_seeds), len(self._modalities["action"].delta_indices))
        return {key: np.zeros((*shape, size), np.float32) for key, size in _DIMENSIONS["action"].items()}

    def modality_config(self) -> Mapping[str, Modality]:
        """Return the modalities of the Panda's models without pictures, which would only cost time."""
        return {**self._modalities, "video": dataclasses.replace(self._modalities["video"], modality_keys=[])}

    def dimensions(self) -> Dimensions | None:
        """Return the sizes of the Panda's groups."""
        return _DIMENSIONS

    def _next_chunks(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Count the env slots that need a chunk, and ask about them."""
        self.count.slots_needed += len(env_ids)
        self.count.slots_of_all += env.num_envs
        return super()._next_chunks(env, observation, env_ids)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Ask if a chunk is due, and return the actions of the scripted policy."""
        super().get_action(env, observation)
        return self._driver.get_action(env, observation)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Start them for both."""
        super().start_episodes(env, starts)
        self._driver.start_episodes(env, starts)


def count_requests(
    yaml: str, environment_name: str, *, num_envs: int, num_episodes: int, per_query: int | None
) -> tuple[QueryCount, Tally]:
    """Run episodes, and return the counts of queries and the outcomes of the episodes."""
    environment = build(environment_name, num_envs)
    policy = CountedQueries(ClosedloopPolicyArgs(policy_config_yaml_path=yaml, rows_per_query=per_query))
    found = tally(environment, policy, num_episodes)
    environment.close()
    return policy.count, found


def requests_table(yaml: str, environment_name: str, *, num_envs: Sequence[int], episodes_per_slot: int) -> list[str]:
    """Return the lines of the table of requests."""
    table = []
    for slots in num_envs:
        size = {"num_envs": slots, "num_episodes": slots * episodes_per_slot}
        count, found = count_requests(yaml, environment_name, **size, per_query=CPU_SLOTS_PER_QUERY)
        parts = (count.slots_needed, count.slots_asked)
        numbers = (f"{number:,}" for number in (*parts, count.slots_of_all))
        saved = (f"{100 * (1 - part / count.slots_of_all):.0f} %" for part in parts)
        table.append((str(slots), str(len(found.records)), found.lengths, *numbers, *saved))
    return markdown_table((*HEADING, "on a CPU"), table, words=0)


QUERY_TEXT = """\
`Gr00tPolicy.get_action`, with pictures of 64 x 64 from two cameras, preparation and noise included. `times float32` is
the median of ratios to the neighbouring query with float32 weights. A policy takes float32 on a CPU and bfloat16 on a
GPU. "Compiled" is what the job's option `compile_model` gives: `torch.compile` of the steps of the flow."""

START_TEXT = """\
Each start is a process of its own, with all files in the disk's cache. The runner imports torch in any case."""

REMOTE_TEXT = """\
`gr00t_closedloop` asks in this process, `gr00t_remote_closedloop` a `gr00t-server` on the loopback; both ask the same
checkpoint, in turn. `more` is the median of differences, `times` that of ratios."""

TIME_TEXT = """\
Whole runs of the program, with two cameras of 64 x 64 and a dataset of states, physics on one thread. Shares are those
of `timing.csv` in a job's time without building; the rest is the loop itself. CPU seconds are those of the process with
its start and its tables."""

MEMORY_TEXT = """\
The most that the process of the same runs held at any time: resident, with its tables, and on a GPU all that was taken
of it while the process ran."""

REQUESTS_TEXT = f"""\
Episodes end as those of the scripted policy, so at different times. A model is asked for the env slots whose chunk is
used up: on a GPU for these alone, on a CPU in queries of {CPU_SLOTS_PER_QUERY} slots, filled up. "All slots" is what
asking for every slot at the same moments would have come to."""


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the measurement."""

    # Directory of a checkpoint that fits `isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml`; by default
    # one with random weights is made.
    model_path: Path | None = None
    # Devices of models and simulations; by default the CPU, and a GPU if there is one.
    devices: tuple[str, ...] = field(default_factory=_devices)
    batch_sizes: tuple[int, ...] = (1, 8, 64)  # Env slots of a query.
    num_envs: tuple[int, ...] = (8, 32)  # Env slots of a job whose time and memory are measured.
    counted_num_envs: tuple[int, ...] = (1, 8, 32)  # Env slots of a job whose queries are counted.
    environment: str = "lift_object"  # Environment of the jobs.
    repetitions: int = 15  # Queries of each kind.
    starts: int = 5  # Starts on each device.
    runs: int = 3  # Runs of each job.
    episodes: int = 1  # Episodes for each slot of a job whose time and memory are measured.
    counted_episodes: int = 8  # Episodes for each slot of a job whose queries are counted.
    # Devices on which the model is also compiled by torch, which takes minutes; by default a GPU.
    compiled_on: tuple[str, ...] = field(default_factory=lambda: _devices()[1:])
    num_threads: int = 1  # Threads of torch.


def main(options: Options) -> None:
    """Print the tables and write the page."""
    torch.set_num_threads(options.num_threads)
    page = Page("gr00t_policy", "What a GR00T policy costs", options, "torch", "transformers")
    with tempfile.TemporaryDirectory(prefix="gr00t_policy_") as name:
        directory = Path(name)
        if options.model_path is None:
            millions = save_random_checkpoint(directory / "checkpoint") / 1e6
            model = f"a fresh checkpoint of {millions:.1f} million parameters with random weights"
        else:
            model = f"the checkpoint `{options.model_path}`"
        model_path = options.model_path or directory / "checkpoint"
        yaml = write_policy_yaml(directory / "panda.yaml", model_path)
        blind = write_policy_yaml(directory / "blind.yaml", model_path, pov_cam_name_sim={})
        devices, repetitions = options.devices, options.repetitions
        sections: list[str] = []

        def add(title: str, text: str, table: Sequence[str]) -> None:
            sections.append("\n".join([f"## {title}", "", text, "", *table]))
            print(f"\n{sections[-1]}", flush=True)

        asked = {"devices": devices, "batch_sizes": options.batch_sizes, "repetitions": repetitions}
        add("One query", QUERY_TEXT, latency_table(yaml, compiled_on=options.compiled_on, **asked))
        starts = start_table(yaml, devices=devices, num_threads=options.num_threads, repetitions=options.starts)
        add("The start", START_TEXT, starts)
        add("A server instead", REMOTE_TEXT, remote_table(yaml, directory, **asked))
        of_job = partial(JobSize, environment=options.environment, episodes_per_slot=options.episodes)
        sizes = [of_job(num_envs=num_envs) for num_envs in options.num_envs]
        runs = run_jobs(directory, yaml, sizes, devices=devices, repetitions=options.runs)
        add("Where the time of a job goes", TIME_TEXT, time_table(runs))
        add("Memory of a rank", MEMORY_TEXT, memory_table(runs))
        slots, episodes = options.counted_num_envs, options.counted_episodes
        counted = requests_table(blind, options.environment, num_envs=slots, episodes_per_slot=episodes)
        add("Env slots that are asked for", REQUESTS_TEXT, counted)
    text = f"""\
The model is {model}. Torch has
{options.num_threads} thread{"s" if options.num_threads > 1 else ""}. Figures are medians of {options.repetitions} \
queries of each kind, {options.starts} starts, and {options.runs} runs of each job of `{options.environment}`."""
    page.write(text, *sections)


if __name__ == "__main__":
    run(main, Options)
