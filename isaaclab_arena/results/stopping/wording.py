"""Say in words how far a question is answered."""

import math

from isaaclab_arena.results.stopping.answers import Answer, Verdict

_LARGEST_LOG = 230.0
_MOST_INDICES = 8


def in_words(answer: Answer) -> str:
    """Return one line: ``new-vs-old: decided after 53 of 500: new is better than old (e = 23)``."""
    question = answer.question
    of_all = f"{answer.episodes} of {question.max_episodes}"
    evidence = f"e = {e_value_text(answer.log_e_value)}"
    if answer.verdict is None:
        state = "undecided after" if answer.is_final else "open after"
        return f"{question.name}: {state} {of_all} ({evidence}, {e_value_text(answer.needed_log_e_value)} decides)"
    late = ", by a later step of Holm's method" if answer.is_late else ""
    return f"{question.name}: decided after {of_all}{late}: {verdict_in_words(answer)} ({evidence})"


def verdict_in_words(answer: Answer) -> str:
    """Return what a question has found, such as ``new is better than old``; ``undecided`` where nothing."""
    question = answer.question
    points = f"{100 * (question.margin or 0.0):g} points"
    new, old = question.jobs[0], question.jobs[-1]
    bar = f"{100 * (question.at_least or 0.0):g} %"
    found = {
        None: "undecided",
        Verdict.BETTER: f"{new} is better than {old}",
        Verdict.WORSE: f"{new} is {'' if question.margin is None else f'more than {points} '}worse than {old}",
        Verdict.NO_WORSE: f"{new} is less than {points} worse than {old}",
        Verdict.REACHED: f"{new} succeeds in more than {bar}",
        Verdict.MISSED: f"{new} succeeds in less than {bar}",
    }
    return found[answer.verdict]


def what_does_not_count(answer: Answer) -> str | None:
    """Return which episodes of a question's prefix do not count and why, None where all of them do."""
    parts = []
    if answer.unequal:
        shown = ", ".join(map(str, answer.unequal[:_MOST_INDICES]))
        more = ", …" if len(answer.unequal) > _MOST_INDICES else ""
        parts.append(f"{len(answer.unequal)} started from other conditions in each job ({shown}{more})")
    if answer.left_out:
        parts.append(f"{answer.left_out} ended in an error")
    if answer.repeated:
        parts.append(f"{answer.repeated} repeat the conditions of an earlier one")
    told = ", ".join([*parts[:-2], " and ".join(parts[-2:])])
    return f"{answer.question.name}: of its episodes {told}; they do not count" if parts else None


def e_value_text(log_e_value: float) -> str:
    """Return an e-value in few digits, given its logarithm."""
    if log_e_value > _LARGEST_LOG:
        return f"1e{log_e_value / math.log(10.0):.0f}"
    return f"{math.exp(log_e_value):.3g}"
