"""``isaaclab-arena replay``: simulate recorded episodes again without their policy, and compare every control step."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.cli.json_output import print_json, stdout_for_json
from isaaclab_arena.config.options import Count, refuse_wrong_numbers
from isaaclab_arena.distributed.devices import check_device_exists, visible_gpu_count
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.replaying import ReplayedEpisode, ReplaySettings, replay
from isaaclab_arena.logs import plain_text
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.episodes import find_recordings, in_words, index_episodes
from isaaclab_arena.storage.layout import RUN_PLAN_FILE, demo_name


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Simulate recorded episodes again from their start and their actions, without the policy.

    Every array is compared with the recording, bit for bit, at every control step. Exit code 0 if nothing differs,
    1 if something does.
    """

    dataset: tyro.conf.Positional[str]
    """A recording, the directory of a job, or a pattern such as 'out/lift/dataset_lift_rank*.hdf5'."""
    episodes: str | None = None
    """Episodes to replay, such as 0,5,7-9. By default all."""
    num_envs: Count = 16
    """Env slots to simulate at once."""
    device: str = "cpu"
    """Device of the simulation: cpu, cuda or cuda:<index>."""
    allow_import: bool = False
    """Import the module, or run the interpreter, that the recording names. Use it for authors you trust."""
    json: bool = False
    """Print the result of each episode as JSON, and the text for people on stderr."""


def main(argv: Sequence[str]) -> int:
    """Replay recordings, show whether each episode is equal, and return the exit code; ConfigError."""
    options = tyro.cli(ReplayOptions, args=list(argv), prog="isaaclab-arena replay", use_underscores=True)
    refuse_wrong_numbers(options)
    device = check_device_exists(options.device, visible_gpus=visible_gpu_count(), option="--device")

    # Find the recorded episodes, and of these the requested ones.
    if (Path(options.dataset) / RUN_PLAN_FILE).is_file():
        message = "is the output of a whole run; name the directory of one of its jobs, or a dataset there"
        raise ConfigError(f"'{options.dataset}' {message}", key="DATASET")
    files = index_episodes(find_recordings(options.dataset, key="DATASET"), key="DATASET")
    if options.episodes is not None:
        wanted = chosen_episodes(options.episodes)
        if absent := [index for index in wanted if index not in files]:
            message = f"the recording holds no {in_words(absent)}; it holds {in_words(files)}"
            raise ConfigError(message, key="--episodes")
        files = {index: files[index] for index in wanted}

    settings = ReplaySettings(
        num_envs=options.num_envs, device=device, num_threads=default_num_threads(), may_import=options.allow_import
    )
    shown = _Shown(files)
    with stdout_for_json(wanted=options.json):
        replay(files, settings, shown.add)
        print(plain_text(summary(shown.replayed), keep_lines=True))
    is_bitwise = all(episode.is_bitwise for episode in shown.replayed)
    if options.json:
        print_json({"is_bitwise": is_bitwise, "episodes": shown.replayed})
    return 0 if is_bitwise else 1


class _Shown:
    """Shows episodes in the requested order, each as soon as all before it have ended."""

    def __init__(self, episodes: Iterable[int]) -> None:
        self.replayed: list[ReplayedEpisode] = []  # the episodes already shown
        self._order = list(episodes)
        self._waiting: dict[int, ReplayedEpisode] = {}
        self._said: set[str] = set()

    def add(self, episode: ReplayedEpisode) -> None:
        """Show an episode that has ended, and those that waited for it; or let it wait."""
        self._waiting[episode.episode_index] = episode
        while self._waiting and self._order[len(self.replayed)] in self._waiting:
            following = self._waiting.pop(self._order[len(self.replayed)])
            lines = [f"the environment is not the one that was recorded: {each}" for each in following.contents]
            lines += [f"when this was recorded, {each}" for each in following.other_provenance]
            for line in lines:
                if line not in self._said:
                    self._said.add(line)
                    print(plain_text(line))
            if following.is_damaged:
                verdict = "damaged: its arrays are not what was written, so it was not replayed"
            else:
                verdict = "bitwise" if following.difference is None else f"differs first {following.difference}"
            name = demo_name(following.episode_index)
            print(plain_text(f"{name:<10} {following.num_steps:>5} steps  {verdict}"), flush=True)
            self.replayed.append(following)


def summary(replayed: Sequence[ReplayedEpisode]) -> str:
    """Return one paragraph with the verdict on all episodes."""
    bitwise = [episode for episode in replayed if episode.is_bitwise]
    steps = sum(episode.num_steps for episode in bitwise)
    text = f"{len(bitwise)} of {len(replayed)} episodes bitwise ({steps} control steps)"
    sound = [episode for episode in replayed if not episode.is_damaged]
    if sound:
        text += f"; compared: {', '.join(sound[0].compared)} and how it ended"
    if any(not episode.from_exact_state for episode in sound):
        text += "\nno exact state of the simulator was recorded that fits: episodes started from their conditions"
    return text


def chosen_episodes(text: str) -> list[int]:
    """Return the episodes of a list such as ``0,5,7-9``, ascending; ConfigError if it is malformed."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part, re.ASCII)
        if match is None:
            raise ConfigError(f"'{text}' is no list of episodes such as 0,5,7-9", key="--episodes")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ConfigError(f"'{part.strip()}' runs backwards", key="--episodes")
        found.update(range(first, last + 1))
    return sorted(found)
