"""Other words for the same task: how far they are from its own, and that they tell nothing but the task."""

import re
from collections.abc import Sequence

from isaaclab_arena.errors import ConfigError, Problem

TELLTALES = frozenset(
    (
        *("level", "levels", "axis", "axes", "paraphrase", "paraphrased", "rewrite", "variation", "variant"),
        *("robustness", "benign", "perturbation", "perturbed", "difficulty", "episode"),
        *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        *("first", "second", "third", "fourth", "fifth"),
    )
)
"""Words by which a policy could know that its words were changed, or how far."""

_WORD = re.compile(r"[^\W_]+")


def word_distance(one: str, other: str) -> float:
    """Return how much two texts differ: the share of their words that only one of them has, 0 to 1."""
    ours, theirs = _words(one), _words(other)
    return 1.0 - len(ours & theirs) / len(ours | theirs)


def check_paraphrases(instruction: str, paraphrases: Sequence[str]) -> None:
    """Refuse paraphrases that say more than the task, or are not in order.

    Args:
        instruction: The task's own words in an episode.
        paraphrases: The same task in other words, from near to far.

    Raises:
        ConfigError: If one tells of the change itself, or has no words of its own, or is nearer to the task's own
            words than the one before it.
    """
    nearest = 0.0
    for said in paraphrases:
        telling = sorted((_words(said) - _words(instruction)) & TELLTALES | set(re.findall(r"\d+", said)))
        if telling:
            raise _refused(f"'{said}' tells more than '{instruction}' does: {', '.join(telling)}")
        distance = word_distance(instruction, said)
        if distance == 0.0:
            raise _refused(f"'{said}' has the words of '{instruction}'")
        if distance < nearest:
            raise _refused(f"'{said}' is nearer to '{instruction}' than the one before it; order them from near to far")
        nearest = distance


def _refused(message: str) -> ConfigError:
    return ConfigError(Problem(f"paraphrase {message}", key="paraphrases"))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
