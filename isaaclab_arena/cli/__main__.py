"""``python -m isaaclab_arena.cli`` is ``isaaclab-arena`` where the command is not on the path."""

from isaaclab_arena.distributed.interrupts import leave_on_ctrl_c

if __name__ == "__main__":
    leave_on_ctrl_c()

from isaaclab_arena.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
