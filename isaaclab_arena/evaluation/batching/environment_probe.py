"""Play an episode several times, to find out whether it follows from its conditions and actions alone.

An environment from elsewhere may draw from a generator without a seed, count its resets, or keep a running mean from
one episode to the next. None of that shows in what it says of itself.
"""

from collections.abc import Mapping

import torch

from isaaclab_arena.errors import first_line
from isaaclab_arena.evaluation.batching.policy_probe import generators_kept
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.pictures import CAMERAS, PicturesOnDemand
from isaaclab_arena.testing.playing import Trace, action_of, bits, difference, ended, env_ids_of, shown_in

NUM_STEPS = 8

# Both have the first index, beyond which a benchmark may have no episode.
_EPISODES = tuple(Episode(job="probe", episode_index=0, seed=seed) for seed in (8_121_853, 8_121_854))


def unlike_itself(environment: Environment, *, sees_pictures: bool) -> str | None:
    """Return why an episode does not follow from its conditions and actions, None where nothing speaks against it.

    One episode is played several times with the same few actions: again at once, in another env slot, beside another
    episode and after it. Observations, rewards, ends, success and metrics are compared to the last bit. Process-wide
    generators are left as they were.

    Args:
        environment: The environment between jobs. Its env slots are left in the middle of episodes.
        sees_pictures: Whether pictures that are drawn on demand are compared, too, at the start; others always are.
    """
    last = environment.num_envs - 1
    # Which of the two episodes each env slot plays.
    rounds = {
        "in another env slot": {0: 0, last: 0},
        "again beside another one": {0: 1, last: 0},
        "after another one": {0: 0, last: 1},
    }
    if last == 0:
        rounds = {"": {0: 0}, "again": {0: 0}, "after another one, in between": {0: 1}, "after another one": {0: 0}}
    expected: Trace = []
    try:
        with generators_kept(), torch.no_grad():
            for how, playing in rounds.items():
                for slot, trace in _played(environment, playing, sees_pictures=sees_pictures).items():
                    if playing[slot] != 0:
                        continue
                    expected = expected or trace
                    if why := difference(expected, trace):
                        return f"an episode that is played {how}, with the same actions, takes another course: {why}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  code from elsewhere; the job itself will tell what is wrong
        return (
            f"no episode could be played to see whether it repeats itself ({type(error).__name__}: {first_line(error)})"
        )
    return None


def _played(environment: Environment, playing: Mapping[int, int], *, sees_pictures: bool) -> dict[int, Trace]:
    """Return what episodes showed in env slots, until all have ended or enough steps are made."""
    conditions = {slot: _conditions(environment, _EPISODES[each]) for slot, each in playing.items()}
    _announce(environment, [*playing] if sees_pictures else [])
    observation = environment.reset(env_ids_of(environment, [*playing]), [conditions[slot] for slot in sorted(playing)])
    shown: dict[int, Trace] = {}
    for slot in playing:
        words = {"instruction": environment.instruction(conditions[slot]).encode()}
        shown[slot] = [{**_seen(environment, observation, slot, is_drawn=sees_pictures), **words}]
    running = set(playing)
    for number in range(NUM_STEPS):
        _announce(environment, [])
        step = environment.step(action_of(environment, playing, number))
        outcome = {name: getattr(step, name) for name in ("reward", "terminated", "truncated", "diverged", "success")}
        for slot in running:
            named = {
                name: bits(value[slot]) for name, value in {**step.metrics, **outcome}.items() if value is not None
            }
            shown[slot].append({**_seen(environment, step.observation, slot, is_drawn=False), **named})
        running -= {slot for slot in running if bool(ended(step)[slot])}
        if not running:
            break
    return shown


def _announce(environment: Environment, env_ids: list[int]) -> None:
    if isinstance(environment, PicturesOnDemand):
        environment.draw_pictures_of(env_ids)


def _seen(environment: Environment, observation: Observation, slot: int, *, is_drawn: bool) -> dict[str, bytes]:
    """Return what an env slot shows, without pictures that were not asked for."""
    if isinstance(environment, PicturesOnDemand) and not is_drawn:
        observation = {group: terms for group, terms in observation.items() if group != CAMERAS}
    return shown_in(observation, slot)


def _conditions(environment: Environment, episode: Episode) -> Conditions:
    return environment.vary_conditions(environment.draw_conditions(episode.conditions_generator()), episode)
