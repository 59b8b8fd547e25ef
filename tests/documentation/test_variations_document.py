"""The catalogue in docs/how_to/variations.md is what the program offers."""

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.evaluation.plan.variation_listing import described, listed_variations
from tests.end_to_end.launching import ROOT

DOCUMENT = (ROOT / "docs" / "how_to" / "variations.md").read_text()
JOB = {
    "name": "documented",
    "arena_env_args": {"environment": "lift_object", "object": "cube"},
    "policy_type": "scripted",
    "num_episodes": 1,
}


def catalogue() -> str:
    """Return the rows of the document's table."""
    [job] = resolve_jobs(read_jobs({"jobs": [JOB]}, source="here").jobs)
    return "\n".join(
        f"| `{variation.key}` | {described(variation.sampler)} | {variation.unit} | {variation.description} |"
        for variation in listed_variations(job)
    )


def test_the_documented_catalogue_is_the_programs():
    assert catalogue() in DOCUMENT, f"paste this into docs/how_to/variations.md:\n{catalogue()}"
