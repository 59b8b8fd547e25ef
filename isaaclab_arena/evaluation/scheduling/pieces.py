"""Cuts the episodes of a job into the shares and pieces that ranks run: pure functions."""

from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, cut

_PIECES_PER_RANK = 8
"""Into how many pieces per rank a job is cut: an eighth of a rank's share is lost at most by an uneven end."""

PIECES_PER_RANK_AT_MOST = 1000
"""No piece is smaller than this part of a rank's share of the whole run: each one costs two small files."""


def split_shares(remaining: EpisodeRanges, world_size: int, *, first_rank: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into one consecutive share per rank, sizes differing by at most one.

    Shares go round from ``first_rank``, and the longer ones come first. So many short jobs do not all burden the
    same rank, and a job of one episode stays where round robin would have put it.

    Args:
        remaining: Episodes to run.
        world_size: Number of ranks.
        first_rank: The rank that gets the first share: ``job_index % world_size``.

    Returns:
        The episodes of each rank, by rank; empty where there are fewer episodes than ranks.
    """
    shares = cut(remaining, even_sizes(count_episodes(remaining), world_size))
    return [shares[(rank - first_rank) % world_size] for rank in range(world_size)]


def pieces_of(remaining: EpisodeRanges, *, total_remaining: int, world_size: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into the consecutive pieces that ranks claim one at a time.

    There are eight per rank, of at least one episode. In a run of many jobs they are larger, up to a whole job: never
    smaller than a thousandth of a rank's share of the run, so that thousands of jobs do not make millions of claims.

    Args:
        remaining: Episodes to run.
        total_remaining: Episodes to run in all jobs.
        world_size: Number of ranks.
    """
    num_episodes = count_episodes(remaining)
    smallest = max(1, total_remaining // (PIECES_PER_RANK_AT_MOST * world_size))
    num_pieces = min(_PIECES_PER_RANK * world_size, max(1, num_episodes // smallest))
    return cut(remaining, even_sizes(num_episodes, num_pieces)) if num_episodes else []


def even_sizes(total: int, num_parts: int) -> list[int]:
    """Return the sizes of parts that differ by one at most, the larger ones first."""
    size, longer = divmod(total, num_parts)
    return [size + 1] * longer + [size] * (num_parts - longer)
