"""``isaaclab-arena verify``, ``replay`` and ``film``: run recorded episodes again, to compare or to film them."""

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import tyro
from pydantic import Field

from isaaclab_arena.cli.main import kept, print_json, stdout_for_json
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.config.options import Count, NotNegative, wrong_numbers
from isaaclab_arena.distributed.devices import check_device_exists, default_num_threads, visible_gpu_count
from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean, refuse
from isaaclab_arena.evaluation.process import signals_handled
from isaaclab_arena.evaluation.rerun import (
    Choice,
    FilmedEpisode,
    ReplayedEpisode,
    ReplaySettings,
    discordant_episodes,
    episodes_by_outcome,
    film_episodes,
    rerun,
)
from isaaclab_arena.evaluation.running_episodes import BROKEN_OFF
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import now
from isaaclab_arena.policy.catalog import STATE
from isaaclab_arena.recording import MAX_FPS, VideoOptions
from isaaclab_arena.storage import layout, ledger
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.episodes import find_recordings, in_words, index_episodes

if TYPE_CHECKING:
    from isaaclab_arena.evaluation.verification import Sample, VerifiedEpisode

_NUM_BITWISE = "{} of {} episodes bitwise ({} control steps)".format

# Verify a run: check its files, run a sample of its episodes again, end to end, and compare every step.


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Check that the files of a run are whole, run a sample of its episodes again, end to end, and compare every step.

    The sample runs at another num_envs and on another number of ranks than the run had. Exit code 0 if the files are
    whole and nothing differs, 1 if not.
    """

    output_dir: tyro.conf.Positional[Path]
    """Directory of one run, with its run.json. The command writes only verification.json there."""
    sample: NotNegative = 8
    """Number of episodes to run again, over all jobs; 0 only checks the files."""
    seed: NotNegative = 0
    """Seed of the sample."""
    num_envs: Count | None = None
    """Env slots of every job. By default 1 if the job had several, else 3."""
    nproc: Count | None = None
    """Number of ranks. By default 2 if the run had 1, else 1."""
    no_import: bool = False
    """Refuse jobs that would import unregistered code: for runs of people you do not trust."""
    json: bool = False
    """Print the findings as JSON, and the text for people on stderr."""


def verify(argv: Sequence[str]) -> int:
    """Verify a run, show the findings, and return the exit code; ConfigError, or ArenaError if the sample fails."""
    from isaaclab_arena.evaluation import verification  # noqa: PLC0415  pandas
    from isaaclab_arena.results.merge import merge_results  # noqa: PLC0415  pandas

    options = read_words(VerifyOptions, argv, program="isaaclab-arena verify")
    refuse(wrong_numbers(options))
    with stdout_for_json(wanted=options.json):
        # Show each problem of the files at once.
        began_at, merged = now(), merge_results(options.output_dir)
        problems: list[str] = []
        for problem in verification.check_directory(options.output_dir, merged):
            problems.append(problem)
            _say(problem)
        if not problems:
            jobs = "1 job" if len(merged.plan.jobs) == 1 else f"{len(merged.plan.jobs)} jobs"
            _say(
                f"{jobs}, {len(merged.episodes)} episodes: every array is what was written, nothing is missing or "
                "there twice, the tables are those that a merge gives"
            )

        # Run a sample again, of the jobs that can run again and of their episodes that did not end as in `BROKEN_OFF`.
        # The policies of the others were objects or local classes of the program that began the run.
        gone = [
            job.name
            for job in merged.plan.jobs
            if (job.contents is not None and STATE in job.contents.policy)
            or job.config.policy_type.startswith("__main__.")
            or "<locals>" in job.config.policy_type
        ]
        finished: dict[str, list[int]] = {}
        for name in (job.name for job in merged.plan.jobs if job.name not in gone):
            lines = read_commits(options.output_dir / name, name).lines
            finished[name] = [line.episode_index for line in lines if line.termination not in BROKEN_OFF]
        sample = verification.draw_sample(finished, options.sample, seed=options.seed)
        for job in gone if options.sample > 0 else ():
            _say(
                f"job '{job}' cannot be run again: its policy lived in the program that began the run; isaaclab-arena "
                "replay simulates its recorded actions"
            )
        verified: list[VerifiedEpisode] = []
        if sample:
            verified += _run_again(options, merged.plan, sample)
            _say(_summary(verified))
        else:
            nothing = "no episode was run again"
            _say(nothing if options.sample == 0 else "no episode has finished that could be run again")

        # Store the findings beside the run, for its page.
        episodes = tuple(
            ledger.EpisodeVerification(
                job=each.job,
                episode_index=each.episode_index,
                is_same=each.is_same and not each.contents,
                is_bitwise=each.is_same and not each.contents and each.compares_arrays,
                verdict=f"{each.verdict}, but something else ran than was run" if each.contents else each.verdict,
            )
            for each in verified
        )
        is_as_asked = bool(sample) or options.sample == 0
        record = ledger.RunVerification(
            verified_at=began_at,
            sources=merged.sources,
            num_episodes=len(merged.episodes),
            problems=tuple(problems),
            episodes=episodes,
            is_sound=not problems and is_as_asked and all(each.is_same for each in episodes),
        )
        try:
            ledger.write_verification(options.output_dir, record)
        except StorageError as error:
            _say(f"not kept for the page of the run: {error}")
    if options.json:
        print_json({"problems": problems, "episodes": verified, "is_sound": record.is_sound})
    return 0 if record.is_sound else 1


def _run_again(options: VerifyOptions, plan: ledger.RunPlan, sample: "Sample") -> Iterator["VerifiedEpisode"]:
    """Run a sample with other env slots and ranks, and show each episode's comparison at once."""
    from isaaclab_arena.evaluation import verification  # noqa: PLC0415  pandas

    num_ranks = options.nproc
    if num_ranks is None:
        # Another number than the run's; two ranks need a GPU each.
        on_gpu = any(device != "cpu" for device in plan.devices)
        num_ranks = 1 if plan.world_size > 1 or (on_gpu and visible_gpu_count() == 1) else 2

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    # Termination signals become SystemExit, so that ``with`` blocks end this command's processes and files.
    with signals_handled(end, (signal.SIGTERM, signal.SIGHUP)), TemporaryDirectory(prefix="verify_") as temporary:
        directory = Path(temporary)
        sampled = "; ".join(f"{job} {', '.join(map(str, episodes))}" for job, episodes in sample.items())
        _say(f"running again: {sampled}")
        again = verification.prepare_sample(
            options.output_dir, directory, sample, num_envs=options.num_envs, num_ranks=num_ranks
        )
        before = {job.name: job.config.num_envs for job in plan.jobs}
        pairs = sorted({(before[job.name], job.config.num_envs) for job in again.jobs})
        changes = ", ".join(f"{old} to {new}" for old, new in pairs)
        _say(f"num_envs from {changes}; ranks from {plan.world_size} to {again.world_size}")
        verification.run_sample(options.output_dir, directory, may_import=not options.no_import)

        said: set[str] = set()  # the surroundings of many episodes are the same
        for episode in verification.compare_runs(options.output_dir, directory, sample):
            for line in episode.surroundings:
                if line not in said:
                    _say(line)
            said.update(episode.surroundings)
            name = f"{episode.job} {layout.demo_name(episode.episode_index)}"
            _say(f"{name}: {episode.num_steps} steps, {episode.verdict}")
            yield episode


def _summary(verified: Sequence["VerifiedEpisode"]) -> str:
    """Return one paragraph with the verdict on all episodes."""
    same = [episode for episode in verified if episode.is_same]
    bitwise = [episode for episode in same if episode.compares_arrays]
    text = _NUM_BITWISE(len(bitwise), len(verified), sum(each.num_steps for each in bitwise))
    if other := sorted({episode.job for episode in verified if episode.contents}):
        jobs = ", ".join(f"'{job}'" for job in other)
        text += f"; of {jobs} something else ran than was run, which says nothing about the run's episodes"
    if len(same) > len(bitwise):
        text += (
            f"; {len(same) - len(bitwise)} ended the same: without a dataset only conditions, outcome, length, return "
            "and metrics can be compared"
        )
    return text


def _say(text: str, *, keep_lines: bool = True) -> None:
    """Print a text for people."""
    print(plain_text(text, keep_lines=keep_lines), flush=True)


# Replay recordings: simulate them again without their policy, and compare every control step.


@dataclass(frozen=True, kw_only=True)
class RerunOptions:
    """The options of commands that simulate recordings again."""

    num_envs: Count = 16
    """Env slots to simulate at once."""
    device: str = "cpu"
    """Device of the simulation: cpu, cuda or cuda:<index>."""
    allow_import: bool = False
    """Import the module, or run the interpreter, that a recording names. Use it for authors you trust."""
    json: bool = False
    """Print the result of each episode as JSON, and the text for people on stderr."""

    def settings(self) -> ReplaySettings:
        """Return the settings of the simulation; ConfigError if a number is out of range or the device is missing."""
        refuse(wrong_numbers(self))
        return ReplaySettings(
            num_envs=self.num_envs,
            device=check_device_exists(self.device, visible_gpus=visible_gpu_count(), option="--device"),
            num_threads=default_num_threads(),
            may_import=self.allow_import,
        )


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(RerunOptions):
    """Simulate recorded episodes again from their start and their actions, without the policy.

    Every array is compared with the recording, bit for bit, at every control step. Exit code 0 if nothing differs,
    1 if something does.
    """

    dataset: tyro.conf.Positional[str]
    """A recording, the directory of a job, or a pattern such as 'out/lift/dataset_lift_rank*.hdf5'."""
    episodes: str | None = None
    """Episodes to replay, such as 0,5,7-9. By default all."""


def replay(argv: Sequence[str]) -> int:
    """Replay recordings, show each episode's first difference, and return the exit code; ConfigError."""
    options = read_words(ReplayOptions, argv, program="isaaclab-arena replay")
    settings = options.settings()

    # Find the recorded episodes, and of these the requested ones.
    if (Path(options.dataset) / layout.RUN_PLAN_FILE).is_file():
        message = "is the output of a whole run; name the directory of one of its jobs, or a dataset there"
        raise ConfigError(f"'{options.dataset}' {message}", key="DATASET")
    files = index_episodes(find_recordings(options.dataset, key="DATASET"), key="DATASET")
    if options.episodes is not None:
        wanted = chosen_episodes(options.episodes)
        if absent := [index for index in wanted if index not in files]:
            message = f"the recording holds no {in_words(absent)}; it holds {in_words(files)}"
            raise ConfigError(message, key="--episodes")
        files = {index: files[index] for index in wanted}

    # Show episodes in the requested order, each as soon as all before it have ended.
    replayed: list[ReplayedEpisode] = []
    order, waiting, said = list(files), dict[int, ReplayedEpisode](), set[str]()

    def show(episode: ReplayedEpisode) -> None:
        waiting[episode.episode_index] = episode
        while waiting and order[len(replayed)] in waiting:
            following = waiting.pop(order[len(replayed)])
            for line in following.surroundings:
                if line not in said:
                    _say(line, keep_lines=False)
            said.update(following.surroundings)
            if following.is_damaged:
                verdict = "damaged: its arrays are not what was written, so it was not replayed"
            else:
                verdict = "bitwise" if following.difference is None else f"differs first {following.difference}"
            line = f"{layout.demo_name(following.episode_index):<10} {following.num_steps:>5} steps  {verdict}"
            _say(line, keep_lines=False)
            replayed.append(following)

    with stdout_for_json(wanted=options.json):
        rerun(files, settings, show)
        bitwise = [episode for episode in replayed if episode.difference is None and not episode.is_damaged]
        sound = [episode for episode in replayed if not episode.is_damaged]
        text = _NUM_BITWISE(len(bitwise), len(replayed), sum(each.num_steps for each in bitwise))
        if sound:
            text += f"; compared: {', '.join(sound[0].compared)} and how it ended"
        if any(not episode.from_exact_state for episode in sound):
            text += "\nno exact state of the simulator was recorded that fits: episodes started from their conditions"
        _say(text)
    is_bitwise = len(bitwise) == len(replayed)
    if options.json:
        print_json({"is_bitwise": is_bitwise, "episodes": replayed})
    return 0 if is_bitwise else 1


def chosen_episodes(text: str, choices: Iterable[str] = ()) -> list[int]:
    """Return the episodes of a list such as ``0,5,7-9``, ascending; ConfigError, which may suggest one of `choices`."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part, re.ASCII)
        if match is None:
            hint = did_you_mean(text, choices)
            raise ConfigError(f"'{text}' is no list of episodes such as 0,5,7-9{hint}", key="--episodes")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ConfigError(f"'{part.strip()}' runs backwards", key="--episodes")
        found.update(range(first, last + 1))
    return sorted(found)


# Film episodes of a run that is over, from their recordings.


@dataclass(frozen=True, kw_only=True)
class FilmOptions(RerunOptions):
    """Film episodes of a run from their recordings, as the run would have filmed them.

    Each episode is simulated again from its start and its actions, without its policy. Films in the run get into its
    page, report.html, which is written anew. Exit code 0 if every episode has its film, 1 if not.
    """

    run: tyro.conf.Positional[Path]
    """Directory of the run."""
    episodes: str
    """Episodes of each job: all, one, failures, successes, reasons, discordant, or numbers such as 0,5,7-9. one: the
    first failure, or else the first episode; reasons: up to three failures for each event that decided them."""
    job: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Only this job; may be given several times."""
    baseline: str | None = None
    """With --episodes discordant: the run, or the job of this run, with another outcome from the same conditions."""
    camera: Literal["viewport", "robot", "all"] = "viewport"
    """viewport for the whole scene, robot for each camera of the policy, or all."""
    video_fps: Annotated[float, Field(gt=0, le=MAX_FPS)] = 10.0
    """Frames per second of robot time; at most one per step."""
    output_dir: Path | None = None
    """Directory for <job>/videos; by default the run itself."""


def film(argv: Sequence[str]) -> int:
    """Film episodes, show each result, and return the exit code; ConfigError, or StorageError for a film."""
    options = read_words(FilmOptions, argv, program="isaaclab-arena film")
    settings = options.settings()
    shown = {"camera": options.camera != "viewport", "viewport": options.camera != "robot"}
    video = VideoOptions(frames_per_second=options.video_fps, **shown)

    # Choose the episodes of the named jobs, in the order of the run's plan; of all that were to run if none is named.
    names = [job.name for job in ledger.read_run_plan(options.run).jobs if job.is_to_run]
    unknown = [job for job in options.job if job not in names]
    wrong = "there is no job '{}' in {}{}".format
    refuse([Problem(wrong(job, options.run, did_you_mean(job, names)), key="--job") for job in unknown])
    jobs = [name for name in names if name in options.job or not options.job]
    is_discordant = options.episodes == Choice.DISCORDANT
    if is_discordant != (options.baseline is not None):
        key = "--episodes" if is_discordant else "--baseline"
        raise ConfigError("--episodes discordant and --baseline RUN or JOB belong together", key=key)
    episodes: Mapping[str, Sequence[int]]
    if options.baseline is not None:
        episodes = discordant_episodes(options.run, jobs, options.baseline)
    elif options.episodes in set(Choice):
        episodes = episodes_by_outcome(options.run, jobs, Choice(options.episodes))
    else:
        episodes = dict.fromkeys(jobs, chosen_episodes(options.episodes, Choice))

    filmed: list[FilmedEpisode] = []

    def show(episode: FilmedEpisode) -> None:
        filmed.append(episode)
        if episode.reason is not None:
            told = f"no film: {episode.reason}"
        else:
            told = ", ".join(map(str, episode.films))
            if episode.pose_difference > 0:
                told += f" (poses are up to {episode.pose_difference:.1g} m or rad from those recorded)"
        _say(f"{episode.job} {layout.demo_name(episode.episode_index)}: {told}", keep_lines=False)

    # Lines for people must not get into the JSON on stdout.
    with stdout_for_json(wanted=options.json):
        film_episodes(options.run, episodes, video, settings, show, output_directory=options.output_dir)
        with_film = sum(episode.reason is None for episode in filmed)
        print(f"{with_film} of {len(filmed)} episodes filmed")
        # The page of the run shows the films that lie in it.
        page = None
        if with_film and options.output_dir is None:
            from isaaclab_arena.report.writing import write_report  # noqa: PLC0415  pandas and Jinja

            page = kept(lambda: write_report([options.run]), way_out="isaaclab-arena report writes the page elsewhere")
            if page is not None:
                _say(f"report written anew, with the films: {page}")
    if options.json:
        print_json({"episodes": filmed, "report": None if page is None else str(page)})
    return 0 if with_film == len(filmed) else 1
