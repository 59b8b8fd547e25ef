"""``isaaclab-arena verify``: check the files of a run, run a sample of its episodes again, and compare every step."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import tyro

from isaaclab_arena.cli.json_output import print_json, stdout_for_json
from isaaclab_arena.config.options import Count, NotNegative, refuse_wrong_numbers
from isaaclab_arena.distributed.devices import visible_gpu_count
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation import verification
from isaaclab_arena.evaluation.process import signals_handled
from isaaclab_arena.evaluation.verification_worker import draw_sample, prepare_sample
from isaaclab_arena.logs import plain_text
from isaaclab_arena.paths import now
from isaaclab_arena.results.freshness import EpisodeVerification, RunVerification, write_verification
from isaaclab_arena.results.merge import MergedResults, merge_results
from isaaclab_arena.storage.layout import demo_name
from isaaclab_arena.storage.ledger import RunPlan


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


def main(argv: Sequence[str]) -> int:
    """Verify a run, show the findings, and return the exit code; ConfigError, or ArenaError if the sample fails."""
    options = tyro.cli(VerifyOptions, args=list(argv), prog="isaaclab-arena verify", use_underscores=True)
    refuse_wrong_numbers(options)
    with stdout_for_json(wanted=options.json):
        began_at, merged = now(), merge_results(options.output_dir)
        problems, verified, is_sound = _looked_at(options, merged)

        # Store the findings beside the run, for its page.
        episodes = []
        for episode in verified:
            is_same = episode.is_same and not episode.contents
            verdict = _verdict(episode) + (", but something else ran than was run" if episode.contents else "")
            episodes.append(
                EpisodeVerification(
                    job=episode.job,
                    episode_index=episode.episode_index,
                    is_same=is_same,
                    is_bitwise=is_same and episode.compares_arrays,
                    verdict=verdict,
                )
            )
        record = RunVerification(
            verified_at=began_at,
            sources=merged.sources,
            num_episodes=len(merged.episodes),
            problems=problems,
            episodes=tuple(episodes),
            is_sound=is_sound,
        )
        try:
            write_verification(options.output_dir, record)
        except StorageError as error:
            _say(f"not kept for the page of the run: {error}")
    if options.json:
        print_json({"problems": problems, "episodes": verified, "is_sound": is_sound})
    return 0 if is_sound else 1


def _looked_at(
    options: VerifyOptions, merged: MergedResults
) -> tuple[tuple[str, ...], tuple[verification.VerifiedEpisode, ...], bool]:
    """Check the files, run a sample again, and show each finding at once."""
    # Return the problems of the files, the episodes that ran again, and True if all are intact and equal.
    found = []
    for problem in verification.check_directory(options.output_dir, merged):
        found.append(problem)
        _say(problem)
    if not found:
        jobs = "1 job" if len(merged.plan.jobs) == 1 else f"{len(merged.plan.jobs)} jobs"
        _say(
            f"{jobs}, {len(merged.episodes)} episodes: every array is what was written, nothing is missing or there "
            "twice, the tables are those that a merge gives"
        )
    problems = tuple(found)

    sample = draw_sample(
        verification.episodes_to_draw_from(options.output_dir, merged.plan), options.sample, seed=options.seed
    )
    if options.sample > 0:
        for job in verification.jobs_of_one_program(merged.plan):
            _say(
                f"job '{job}' cannot be run again: its policy lived in the program that began the run; isaaclab-arena "
                "replay simulates its recorded actions"
            )
    if not sample:
        _say("no episode was run again" if options.sample == 0 else "no episode has finished that could be run again")
        return problems, (), not problems and options.sample == 0
    verified = tuple(_verified(options, merged.plan, sample))
    _say(summary(verified))
    return problems, verified, not problems and all(each.is_same and not each.contents for each in verified)


def _verdict(episode: verification.VerifiedEpisode) -> str:
    if episode.failure is not None:
        verdict = f"did not finish: {episode.failure}"
    elif episode.unreadable is not None:
        verdict = f"cannot be compared: {episode.unreadable}"
    elif episode.difference is not None:
        verdict = f"differs first {episode.difference}"
    else:
        verdict = "bitwise" if episode.compares_arrays else "ended the same"
    if episode.explanation is not None:
        verdict += f" ({episode.explanation})"
    return verdict


def summary(verified: Sequence[verification.VerifiedEpisode]) -> str:
    """Return one paragraph with the verdict on all episodes."""
    same = [episode for episode in verified if episode.is_same]
    bitwise = [episode for episode in same if episode.compares_arrays]
    text = (
        f"{len(bitwise)} of {len(verified)} episodes bitwise ({sum(each.num_steps for each in bitwise)} control steps)"
    )
    if other := sorted({episode.job for episode in verified if episode.contents}):
        jobs = ", ".join(f"'{job}'" for job in other)
        text += f"; of {jobs} something else ran than was run, which says nothing about the run's episodes"
    if len(same) > len(bitwise):
        text += (
            f"; {len(same) - len(bitwise)} ended the same: without a dataset only conditions, outcome, length, return "
            "and metrics can be compared"
        )
    return text


def _verified(options: VerifyOptions, plan: RunPlan, sample: verification.Sample) -> list[verification.VerifiedEpisode]:
    num_ranks = options.nproc
    if num_ranks is None:
        # Another number than the run's; two ranks need a GPU each.
        on_gpu = any(device != "cpu" for device in plan.devices)
        num_ranks = 1 if plan.world_size > 1 or (on_gpu and visible_gpu_count() == 1) else 2
    # Termination signals become SystemExit, so that ``with`` blocks end this command's processes and files.
    with signals_handled(_end, (signal.SIGTERM, signal.SIGHUP)), TemporaryDirectory(prefix="verify_") as temporary:
        directory = Path(temporary)
        sampled = "; ".join(f"{job} {', '.join(map(str, episodes))}" for job, episodes in sample.items())
        _say(f"running again: {sampled}")
        again = prepare_sample(options.output_dir, directory, sample, num_envs=options.num_envs, num_ranks=num_ranks)
        before = {job.name: job.config.num_envs for job in plan.jobs}
        pairs = sorted({(before[job.name], job.config.num_envs) for job in again.jobs})
        changes = ", ".join(f"{old} to {new}" for old, new in pairs)
        _say(f"num_envs from {changes}; ranks from {plan.world_size} to {again.world_size}")
        verification.run_sample(options.output_dir, directory, may_import=not options.no_import)

        verified: list[verification.VerifiedEpisode] = []
        told: set[str] = set()
        for episode in verification.compare_runs(options.output_dir, directory, sample):
            # Differences around an episode, besides its arrays, are the same for many: each is said once.
            others = [f"job '{episode.job}' is not what was run: {each}" for each in episode.contents]
            others += [f"when the run ran, {each}" for each in episode.other_provenance]
            for line in others:
                if line not in told:
                    told.add(line)
                    _say(line)
            name = f"{episode.job} {demo_name(episode.episode_index)}"
            _say(f"{name}: {episode.num_steps} steps, {_verdict(episode)}")
            verified.append(episode)
    return verified


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(plain_text(text, keep_lines=True), flush=True)
