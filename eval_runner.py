"""The short entry point: ``python -m eval_runner --eval_jobs_config jobs.json``."""

from isaaclab_arena.garbage import collect_later

if __name__ == "__main__":
    collect_later()

from isaaclab_arena.evaluation.eval_runner import main

if __name__ == "__main__":
    raise SystemExit(main())
