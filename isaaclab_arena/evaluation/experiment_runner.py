"""Run an experiment of Isaac Lab Arena, which is what `eval_runner` does under the name of Arena's later versions.

python -m isaaclab_arena.evaluation.experiment_runner --experiment_config experiment.yaml runs.lift.num_rebuilds=2
"""

from isaaclab_arena.garbage import collect_later

if __name__ == "__main__":
    collect_later()

from isaaclab_arena.evaluation.eval_runner import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
