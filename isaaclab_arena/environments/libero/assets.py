"""Finds which files of meshes and textures a task of LIBERO needs, and which of them a checkout lacks."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from isaaclab_arena.sim.scene.mjcf_files import ContentKey, stamps

_SECTIONS = re.compile(r"\(:(objects|fixtures)\b([^)]*)\)")
_CATEGORY = re.compile(r"-\s+([\w-]+)")
_PROBLEM = re.compile(r"\(\s*problem\s+(\w+)")
_CLASS = re.compile(r"^class (\w+)\(\s*(\w+)[^)]*\):", re.MULTILINE)
_WORD = re.compile(r"([A-Z0-9])")
_MODEL = re.compile(r"[\"'](assets/[^\"'{}]+\.xml)[\"']")
_SCENE_FILE = re.compile(r"[\"'](scenes/[^\"'{}]+\.xml)[\"']")
_STYLE = re.compile(r"[\"'](?:floor|wall)_style[\"']\s*:\s*[\"']([\w-]+)[\"']")


def missing_assets(inside: Path, description: str) -> list[Path]:
    """Return the files that a task's scene and objects refer to and that are not there, in order of their names.

    Args:
        inside: LIBERO's inner package.
        description: What the task's file says, in BDDL.
    """
    seen: set[Path] = set()
    for path in [*_models(inside, description), *_scene(inside, description)]:
        _add_with_references(path, seen)
    return sorted(path for path in seen if not path.is_file())


def _models(inside: Path, description: str) -> Iterator[Path]:
    """Yield the models of objects and fixtures, as LIBERO's classes find them."""
    assets = inside / "assets"
    named = _named_models(inside / "envs" / "objects")
    for section, text in _SECTIONS.findall(description):
        for category in _CATEGORY.findall(text):
            if category in named:
                yield inside / named[category]
                continue
            models = [*assets.glob(f"*/{category}.xml"), *assets.glob(f"*/{category}/{category}.xml")]
            # Some fixtures are part of the scene; every object has a model of its own.
            yield from models or ([assets / f"{category}.xml"] if section == "objects" else [])


def _scene(inside: Path, description: str) -> Iterator[Path]:
    """Yield the scene that the task's problem is set in, and the textures of its floor and walls."""
    problem = _PROBLEM.search(description)
    name = problem.group(1).lower() if problem else ""
    classes = _problems(inside / "envs" / "problems")
    scenes: list[str] = []
    styles: list[str] = []
    # A class that says nothing of its own has what the class below it has.
    while name in classes and not (scenes and styles):
        scenes = scenes or classes[name].scenes
        styles = styles or classes[name].styles
        name = classes[name].base
    yield from (inside / "assets" / scene for scene in scenes)
    source = inside / "envs" / "arenas" / "style.py"
    known = source.read_text() if source.is_file() else ""
    for style in styles:
        textures = re.findall(rf"\"{re.escape(style)}\":\s*\"([^\"]+)\"", known)
        yield from (inside / "assets" / "textures" / texture for texture in textures)


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """What a class of problems names: the class below it, in lower case, its scenes, and styles of floor and walls."""

    base: str
    scenes: list[str]
    styles: list[str]


def _named_models(directory: Path) -> Mapping[str, str]:
    """Return the models that classes of objects name as they are, by the category under which LIBERO knows a class."""
    return {
        category: model
        for path in sorted(directory.glob("*.py"))
        for category, model in _models_in(path, stamps([path])).items()
    }


def _problems(directory: Path) -> Mapping[str, _Problem]:
    """Return the classes of problems, by their names in lower case, as LIBERO knows them."""
    return {
        name: problem
        for path in sorted(directory.glob("*.py"))
        for name, problem in _problems_in(path, stamps([path])).items()
    }


# Files of LIBERO-plus hold thousands of classes, so each is read once for all tasks, and again after it was changed.
@cache
def _models_in(path: Path, key: ContentKey) -> Mapping[str, str]:
    del key
    found = {name: _MODEL.findall(body) for name, _, body in _classes(path)}
    return {"_".join(_WORD.sub(r" \1", name).split()).lower(): models[0] for name, models in found.items() if models}


@cache
def _problems_in(path: Path, key: ContentKey) -> Mapping[str, _Problem]:
    del key
    return {
        name.lower(): _Problem(base=base.lower(), scenes=_SCENE_FILE.findall(body), styles=_STYLE.findall(body))
        for name, base, body in _classes(path)
    }


def _classes(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the first base class and the body of each class of a file."""
    parts = _CLASS.split(path.read_text())
    yield from zip(parts[1::3], parts[2::3], parts[3::3], strict=True)


def _add_with_references(path: Path, seen: set[Path]) -> None:
    """Add a file, and if it is a model all that it refers to."""
    if path in seen:
        return
    seen.add(path)
    if path.suffix != ".xml" or not path.is_file():
        return
    root = ET.parse(path).getroot()  # noqa: S314  a file of the checkout, which is run anyway
    compiler = root.find("compiler")
    directories = {} if compiler is None else {"mesh": compiler.get("meshdir"), "texture": compiler.get("texturedir")}
    for element in root.iter():
        name = element.get("file")
        if name:
            below = path.parent / (directories.get(element.tag) or "")
            _add_with_references(Path(re.sub(r"[^/]+/\.\./", "", str(below / name))), seen)
