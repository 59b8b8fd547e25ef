"""The pages of the Python reference: which modules each shows; mkdocstrings writes them from the docstrings."""

from dataclasses import dataclass

PACKAGE = "isaaclab_arena"


@dataclass(frozen=True)
class Chapter:
    """One page of the reference.

    Attributes:
        title: Its heading.
        says: What the reader finds there, in a sentence.
        modules: Dotted names without the package.
        names: Dotted names of single classes and functions, which stand first.
    """

    title: str
    says: str
    modules: tuple[str, ...]
    names: tuple[str, ...] = ()


CHAPTERS = {
    "python": Chapter(
        "From a Python program",
        "What `import isaaclab_arena` offers, and its exceptions.",
        ("api.arguments",),
        (
            "evaluate",
            "make",
            "load_results",
            "compare",
            "Results",
            "JobResults",
            "Comparison",
            "ArenaError",
            "ConfigError",
            "errors.Problem",
            "errors.PolicyLostError",
            "errors.StorageError",
        ),
    ),
    "policies": Chapter(
        "Policies",
        "What a policy of yours implements or declares.",
        (
            "interfaces.policy",
            "interfaces.policy_traits",
            "policy.policy_base",
            "assets.register",
            "policy.action_chunking",
        ),
    ),
    "environments": Chapter(
        "Environments",
        "What an environment of yours implements, and the data that travels between it and the loop.",
        (
            "interfaces.environment",
            "interfaces.environment_builder",
            "interfaces.episode",
            "interfaces.specs",
            "interfaces.pictures",
            "interfaces.variation",
            "interfaces.recordable",
            "interfaces.snapshottable",
            "environments.catalog",
        ),
        ("config.expansion.suites.Suite", "config.expansion.suites.SuiteTask"),
    ),
    "tasks": Chapter(
        "Tasks",
        "The parts that a task on a table or on a floor is made of.",
        (
            "environments.mdp.task",
            "environments.mdp.things",
            "environments.mdp.terms",
            "environments.mdp.observations",
            "environments.mdp.conditions",
            "environments.mdp.floor_task",
            "environments.mdp.locomotion_terms",
            "environments.arena.builder",
            "environments.arena.floor_builder",
        ),
    ),
    "robots": Chapter(
        "Robots",
        "What a robot's description holds, and the embodiment that is made of it.",
        ("environments.robots.description", "environments.robots.embodiment", "environments.robots.workspace"),
    ),
    "observers": Chapter(
        "Observers", "What watches a run without being part of it.", ("interfaces.observer", "interfaces.content")
    ),
    "files": Chapter(
        "Results and recordings",
        "Reading what a run has written.",
        (
            "results.merge",
            "results.rows",
            "results.statistics",
            "storage.recordings",
            "storage.hdf5.episodes",
            "storage.recorded_episode",
        ),
    ),
    "ranks": Chapter(
        "Ranks and devices", "Which rank a process is.", ("distributed.context", "distributed.devices.visible_gpus")
    ),
    "conformance": Chapter(
        "Tests to inherit",
        "Rules that a policy or an environment of yours keeps, one test each.",
        ("testing.policy_conformance", "testing.environment_conformance", "testing.picture_conformance", "seeding"),
    ),
}


def modules_of(chapter: Chapter) -> list[str]:
    """Return the full names of the modules that a page shows."""
    return [f"{PACKAGE}.{name}".removesuffix(".") for name in chapter.modules]


def pages() -> dict[str, str]:
    """Return the pages of the Python reference, by their path in the site."""
    listed = "\n".join(f"- [{chapter.title}]({slug}.md): {chapter.says}" for slug, chapter in CHAPTERS.items())
    written = {f"reference/api/{slug}.md": _page(chapter) for slug, chapter in CHAPTERS.items()}
    return {"reference/api/index.md": f"# Python\n\nWritten from the docstrings.\n\n{listed}\n", **written}


def _page(chapter: Chapter) -> str:
    shown = [*(f"{PACKAGE}.{name}" for name in chapter.names), *modules_of(chapter)]
    parts = [f"# {chapter.title}", chapter.says, *(f"::: {name}" for name in shown)]
    return "\n\n".join(parts) + "\n"
