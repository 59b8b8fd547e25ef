"""The pages of the Python reference: mkdocstrings writes each from the docstrings of what one face offers."""

import importlib
from dataclasses import dataclass

PACKAGE = "isaaclab_arena"


@dataclass(frozen=True)
class Chapter:
    """One page of the reference.

    Attributes:
        title: Its heading.
        says: What the reader finds there, in a sentence.
        face: Dotted name of the module that programs import, without the package; empty for the package itself.
        modules: Dotted names of what the page shows besides, modules or objects, without the package.
    """

    title: str
    says: str
    face: str | None
    modules: tuple[str, ...] = ()


CHAPTERS = {
    "python": Chapter(
        "From a Python program",
        "What `import isaaclab_arena` offers, and its exceptions.",
        "",
        ("api.evaluating.PolicyLike", "api.evaluating.JobFileKeywords", "api.evaluating.JobKeywords"),
    ),
    "policies": Chapter("Policies", "What a policy of yours implements, declares and may use.", "policies"),
    "tasks": Chapter("Tasks", "The parts that a task on a table or on a floor is made of.", "tasks"),
    "environments": Chapter(
        "Environments",
        "What an environment of yours implements, and the data that travels between it and the loop.",
        "environments",
    ),
    "robots": Chapter(
        "Robots",
        "What a robot's description holds.",
        None,
        tuple(
            f"environments.robots.embodiment.{part}Description"
            for part in ("Robot", "Mount", "Base", "Arm", "Gripper", "Camera", "Workspace")
        ),
    ),
    "observers": Chapter("Observers", "What watches a run without being part of it.", "observers"),
    "results": Chapter("Results and recordings", "Reading what a run has written.", "results"),
    "training": Chapter("Training", "What a program that trains asks.", "training"),
    "testing": Chapter(
        "Tests to inherit", "Rules that a policy or an environment of yours keeps, one test each.", "testing"
    ),
}


def shown_by(chapter: Chapter) -> list[str]:
    """Return the full names of what a page shows: each name of its face, then whole modules."""
    modules = [f"{PACKAGE}.{name}" for name in chapter.modules]
    if chapter.face is None:
        return modules
    face = importlib.import_module(f"{PACKAGE}.{chapter.face}".removesuffix("."))
    return [*(f"{face.__name__}.{name}" for name in face.__all__), *modules]


def pages() -> dict[str, str]:
    """Return the pages of the Python reference, by their path in the site."""
    listed = "\n".join(f"- [{chapter.title}]({slug}.md): {chapter.says}" for slug, chapter in CHAPTERS.items())
    written = {f"reference/api/{slug}.md": _page(chapter) for slug, chapter in CHAPTERS.items()}
    return {"reference/api/index.md": f"# Python\n\nWritten from the docstrings.\n\n{listed}\n", **written}


def _page(chapter: Chapter) -> str:
    parts = [f"# {chapter.title}", chapter.says, *(f"::: {name}" for name in shown_by(chapter))]
    return "\n\n".join(parts) + "\n"
