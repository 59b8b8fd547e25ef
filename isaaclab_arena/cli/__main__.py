"""``python -m isaaclab_arena.cli`` is ``isaaclab-arena`` where the command is not on the path."""

from isaaclab_arena.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
