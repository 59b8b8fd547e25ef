"""Model servers of vla-eval's own classes, in its interpreter: ``python vla_eval_model_servers.py KIND``.

It writes its port. ``plain`` and ``batched`` answer with what follows from one observation and its instruction,
``chunked`` with six steps that vla-eval plays one by one; ``errs`` fails at its third observation, ``hangs`` is silent
at its third; ``still`` asks a robot of eight numbers to do nothing. The first number of a batched action is the size
of its batch.
"""

import functools
import sys
import time

import anyio
import numpy as np
from vla_eval.model_servers.predict import PredictModelServer  # pyright: ignore  in its interpreter
from vla_eval.model_servers.serve import serve_async  # pyright: ignore  in its interpreter
from vla_eval.specs import IMAGE_RGB, LANGUAGE, RAW, DimSpec  # pyright: ignore  in its interpreter


class Pusher(PredictModelServer):
    """Pushes the point of `tests.environments.gym.vla_eval_points` to where its instruction says."""

    def __init__(self, kind):
        super().__init__(
            chunk_size=6 if kind == "chunked" else None,
            max_batch_size=3 if kind == "batched" else 1,
            max_wait_time=1.0,
        )
        self.kind, self.num_asked, self.num_started = kind, 0, 0

    async def on_episode_start(self, config, ctx):
        await super().on_episode_start(config, ctx)
        self.num_started += 1
        assert self.kind == "still" or config["task"]["name"] in ("move left", "move right"), config

    def push(self, obs):
        goal = np.array([-1.0 if obs["task_description"] == "move left now" else 1.0, 0.0])
        wobble = obs["images"]["front"].astype(np.float64).mean() / 1e4
        return 4.0 * (goal - np.asarray(obs["state"]["place"], np.float32)) + wobble

    def predict(self, obs, ctx):
        self.num_asked += 1
        if self.kind == "still":
            return {"actions": np.zeros(8)}
        if self.num_asked == 3 and self.kind == "errs":
            raise ValueError("the pictures are too dark")
        if self.num_asked == 3 and self.kind == "hangs":
            time.sleep(30)
        action = self.push(obs)
        steps = np.arange(8)[:, None] + 100.0 * self.num_asked
        return {"actions": np.broadcast_to(steps, (8, 2)) if self.kind == "chunked" else action}

    def predict_batch(self, obs_batch, ctx_batch):
        return [{"actions": np.array([len(obs_batch), self.push(obs)[1]])} for obs in obs_batch]

    def get_action_spec(self):
        return {"push": DimSpec("push", 8 if self.kind == "still" else 2, "delta", (-1, 1))}

    def get_observation_spec(self):
        return {"image": IMAGE_RGB, "state": RAW, "language": LANGUAGE}

    def get_observation_params(self):
        return {"offset": 0.5}


async def main(kind):
    async with anyio.create_task_group() as group:
        port = await group.start(functools.partial(serve_async, Pusher(kind), "127.0.0.1", 0))
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
