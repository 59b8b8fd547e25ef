"""Tells by what an interpreter draws, and frees contexts of robosuite's environments without harm to others."""

from __future__ import annotations

import importlib
import os
import sys
import typing
import weakref

from . import seen_geoms  # noqa: TID252  beside this file, whatever package imports it

_RENDERERS = "robosuite.utils.binding_utils", "MjRenderContext"
_CONTEXTS = (
    ("robosuite.renderers.context.osmesa_context", "OSMesaGLContext"),
    ("robosuite.renderers.context.egl_context", "EGLGLContext"),
    ("robosuite.renderers.context.glfw_context", "GLFWGLContext"),
)


def drawn_with() -> dict[str, str]:
    """Return ``opengl``, the value of MUJOCO_GL, and ``renderer``, which OpenGL names itself, as far as they are known.

    An environment may have set the first when it was made, and the second is that of the context that it has made.
    """
    chosen = os.environ.get("MUJOCO_GL")  # noqa: TID251  a worker's own
    renderer = _renderer()
    return {**({"opengl": chosen} if chosen else {}), **({"renderer": renderer} if renderer else {})}


def _renderer() -> str | None:
    if "OpenGL" not in sys.modules:
        return None
    gl = importlib.import_module("OpenGL.GL")
    try:
        told = [gl.glGetString(name) for name in (gl.GL_RENDERER, gl.GL_VERSION)]
    except gl.error.Error:
        # There is no context yet.
        return None
    return ", ".join(each.decode(errors="replace") for each in told if each) or None


def keep_robosuite_apart() -> None:
    """See `OwnContexts` and, where a processor draws, `seen_geoms`, for robosuite as far as it is loaded."""
    for renderer_class in _loaded(_RENDERERS):
        if os.environ.get("MUJOCO_GL") == "osmesa":  # noqa: TID251  a worker's own
            seen_geoms.leave_out_unseen(renderer_class)
        _ROBOSUITE.keep_apart(renderer_class, [each for place in _CONTEXTS for each in _loaded(place)])


class OwnContexts:
    """Lets each renderer draw, and free what it holds, in its own OpenGL context and in no other.

    A reset of robosuite makes another renderer. The old one lives until Python finds that it is garbage, which may be
    many steps later. Then it frees its textures by their numbers, in whatever context is current: the numbers are
    those of the new renderer's textures as well, and pictures are dark from there on.
    """

    def __init__(self) -> None:
        self._changed: set[typing.Any] = set()
        self._current: typing.Callable[[], typing.Any] = _nothing

    def keep_apart(self, renderer_class: typing.Any, context_classes: typing.Sequence[typing.Any]) -> None:
        """Change classes that were not changed before.

        Args:
            renderer_class: Has ``gl_ctx``, ``render`` and ``__del__``.
            context_classes: What ``gl_ctx`` may be, with ``make_current``.
        """
        if renderer_class not in self._changed:
            self._draw_in_its_own(renderer_class)
        for context_class in set(context_classes) - self._changed:
            self._follow(context_class)
        self._changed.update((renderer_class, *context_classes))

    def _draw_in_its_own(self, renderer_class: typing.Any) -> None:
        draw, free = renderer_class.render, renderer_class.__del__

        def render(renderer: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            if self._current() is not renderer.gl_ctx:
                renderer.gl_ctx.make_current()
            return draw(renderer, *args, **kwargs)

        def free_in_its_own(renderer: typing.Any) -> None:
            before, own = self._current(), renderer.gl_ctx
            own.make_current()
            free(renderer)
            self._current = _nothing
            # It may have been made for a renderer that is being made.
            if before is not None and before is not own:
                before.make_current()

        renderer_class.render, renderer_class.__del__ = render, free_in_its_own

    def _follow(self, context_class: typing.Any) -> None:
        make_current = context_class.make_current

        def followed(context: typing.Any) -> None:
            make_current(context)
            self._current = weakref.ref(context)

        context_class.make_current = followed


def _nothing() -> None:
    """Stand for a context that is gone, or not known."""


def _loaded(place: tuple[str, str]) -> list[typing.Any]:
    """Return the class of that name in a module, none where the module is not loaded."""
    module, name = place
    return [getattr(sys.modules[module], name)] if module in sys.modules else []


_ROBOSUITE = OwnContexts()
