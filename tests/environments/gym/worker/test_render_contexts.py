"""A renderer that is freed late takes nothing from those that still draw; a stand-in has robosuite's names."""

from typing import ClassVar

import pytest

from isaaclab_arena.environments.gym.worker.rendering import OwnContexts


class Context:
    """One of OpenGL's: textures have numbers that are the same in each, and one context is current."""

    current: ClassVar["Context | None"] = None

    def __init__(self) -> None:
        self.textures: set[int] = set()

    def make_current(self) -> None:
        Context.current = self


class Renderer:
    """Draws as robosuite 1.4.0 and 1.5.2 do: in whatever context is current."""

    def __init__(self) -> None:
        self.gl_ctx = Context()
        self.gl_ctx.make_current()
        self.gl_ctx.textures.add(1)

    def render(self) -> bool:
        return Context.current is not None and 1 in Context.current.textures

    def __del__(self) -> None:
        if Context.current is not None:
            Context.current.textures.discard(1)
        if Context.current is self.gl_ctx:
            Context.current = None


@pytest.fixture
def renderers():
    """A class of its own, of which every renderer draws and is freed in its own context."""
    context_class = type("OwnContext", (Context,), {})
    renderer_class = type("OwnRenderer", (Renderer,), {"__init__": lambda self: made(self, context_class())})
    contexts = OwnContexts()
    for _ in range(2):
        contexts.keep_apart(renderer_class, [context_class])
    return renderer_class


def made(renderer, context) -> None:
    renderer.gl_ctx = context
    context.make_current()
    context.textures.add(1)


def test_a_renderer_that_is_freed_late_takes_the_textures_of_the_one_that_draws():
    old, new = Renderer(), Renderer()
    assert new.render()
    del old
    assert not new.render()


def test_it_does_not_where_each_is_freed_in_its_own_context(renderers):
    old, new = renderers(), renderers()
    del old
    assert Context.current is new.gl_ctx
    assert new.render()


def test_each_draws_in_its_own_context(renderers):
    first, second = renderers(), renderers()
    assert first.render()
    assert Context.current is first.gl_ctx
    assert second.render()
    assert Context.current is second.gl_ctx


def test_one_that_drew_last_leaves_no_context_behind(renderers):
    first, second = renderers(), renderers()
    del second
    assert Context.current is None
    assert first.render()
