"""The renderer of an interpreter, and one OpenGL context for each of robosuite's renderers."""

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
    """Return ``opengl``, the value of MUJOCO_GL, and ``renderer``, OpenGL's own name, if they are known."""
    # An environment may have set it when it was made.
    chosen = os.environ.get("MUJOCO_GL")  # noqa: TID251  a worker's own

    # The renderer is that of the environment's own context.
    told: list[typing.Any] = []
    if "OpenGL" in sys.modules:
        gl = importlib.import_module("OpenGL.GL")
        try:
            told = [gl.glGetString(name) for name in (gl.GL_RENDERER, gl.GL_VERSION)]
        except gl.error.Error:
            told = []  # there is no context yet
    renderer = ", ".join(each.decode(errors="replace") for each in told if each)
    return {**({"opengl": chosen} if chosen else {}), **({"renderer": renderer} if renderer else {})}


def keep_robosuite_apart() -> None:
    """Apply `OwnContexts`, and on a CPU renderer `seen_geoms`, to robosuite's loaded classes."""
    for renderer_class in _loaded(_RENDERERS):
        if os.environ.get("MUJOCO_GL") == "osmesa":  # noqa: TID251  a worker's own
            seen_geoms.leave_out_unseen(renderer_class)
        _ROBOSUITE.keep_apart(renderer_class, [each for place in _CONTEXTS for each in _loaded(place)])


class OwnContexts:
    """Lets each renderer draw, and free its resources, in its own OpenGL context only."""

    def __init__(self) -> None:
        # A reset of robosuite makes a new renderer. The old one lives until garbage collection, maybe many steps later.
        # It then frees its textures by number in the current context, where the same numbers are the new renderer's
        # textures: pictures would be dark from there on.
        self._changed: set[typing.Any] = set()
        self._current: typing.Callable[[], typing.Any] = _nothing

    def keep_apart(self, renderer_class: typing.Any, context_classes: typing.Sequence[typing.Any]) -> None:
        """Patch a renderer class and its context classes, each once."""
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
            # The previous context may belong to a renderer that is being made.
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
    """Stand for a context that is deleted or unknown."""


def _loaded(place: tuple[str, str]) -> list[typing.Any]:
    """Return a module's class in a list, an empty list if the module is not loaded."""
    module, name = place
    return [getattr(sys.modules[module], name)] if module in sys.modules else []


_ROBOSUITE = OwnContexts()
