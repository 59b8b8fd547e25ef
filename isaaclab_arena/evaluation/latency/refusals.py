"""Tell why the answers of a policy cannot be late in an environment in the way that a job asks for."""

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import Problem
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy_traits import ChunkTraits


def refusals(
    delays: Delays,
    meanwhile: Meanwhile,
    environment: Environment,
    *,
    traits: ChunkTraits | None = None,
) -> list[Problem]:
    """Return every problem, with its key within the job.

    Args:
        delays: How many control steps answers are late.
        meanwhile: What the robot does until they are there.
        environment: Where it does that; only its attributes are read.
        traits: What the policy answers with, None where nobody knows yet.
    """
    problems, longest = [], delays.longest
    if longest >= environment.max_episode_length:
        message = f"answers are up to {longest} control steps late; an episode has {environment.max_episode_length}"
        problems.append(Problem(message, key="latency"))
    if meanwhile is Meanwhile.HOLD and longest and environment.hold_action is None:
        message = (
            "'hold' needs an action that keeps the robot still, and the environment declares none "
            "(Environment.hold_action); declare it, or say wait or chunk"
        )
        problems.append(Problem(message, key="latency.meanwhile"))
    if meanwhile not in (Meanwhile.CHUNK, Meanwhile.RTC):
        return problems
    if traits is not None and 2 * longest > traits.predicted:
        predicted = f"{traits.predicted} action{'s' if traits.predicted > 1 else ''}"
        message = (
            f"'{meanwhile}': answers are up to {longest} control steps late and the policy predicts {predicted}, which "
            f"would be used up; at most {traits.predicted // 2} steps late are possible, or say hold"
        )
        problems.append(Problem(message, key="latency.meanwhile"))
    if meanwhile is Meanwhile.RTC and traits is not None and not traits.can_continue:
        message = "'rtc' needs a policy that can be given the actions to go on from, and this one cannot; say chunk"
        problems.append(Problem(message, key="latency.meanwhile"))
    return problems
