"""Programs for LeRobot's interpreter.

``inside untrained_act DIRECTORY CHUNK EDGE PICTURE...`` saves an ACT policy with random weights. States and actions are
those of PushT; the weights are those of seed 0, and the actions spread over the table and push the T now and then.
``inside query_loop DIRECTORY EDGE PICTURE...`` times a query of such a policy for each line with a number of env slots.
``inside select_action_loop POLICY SHOWN ACTIONS`` answers the observations of each file in ``SHOWN`` one after the
other, as ``lerobot-eval`` does, with a file in ``ACTIONS``.
"""

# pyright: reportMissingImports=false
# These packages are those of another interpreter.

from __future__ import annotations

import pathlib
import sys
import time
import typing

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.utils import preprocess_observation
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from benchmarks.harness.workers import serve

STATE, ACTION = "observation.state", "action"
_TABLE = 512.0


def untrained_act(directory: str, chunk: str, edge: str, *pictures: str) -> None:
    """Save a small ACT, which plays a whole chunk for each look, and its processors."""
    torch.manual_seed(0)
    edge_px = int(edge)
    config = ACTConfig(
        input_features={
            **{name: PolicyFeature(FeatureType.VISUAL, (3, edge_px, edge_px)) for name in pictures},
            STATE: PolicyFeature(FeatureType.STATE, (2,)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (2,))},
        pretrained_backbone_weights=None,
        dim_model=128,
        n_heads=4,
        dim_feedforward=512,
        n_encoder_layers=2,
        n_vae_encoder_layers=2,
        latent_dim=8,
        chunk_size=int(chunk),
        n_action_steps=int(chunk),
        device="cpu",
        push_to_hub=False,
    )
    policy = ACTPolicy(config)
    statistics = {}
    for name, shape, scale in (
        *((name, (3, 1, 1), 1.0) for name in pictures),
        (STATE, (2,), _TABLE),
        (ACTION, (2,), _TABLE),
    ):
        whole = torch.full(shape, scale)
        statistics[name] = {"mean": 0.5 * whole, "std": 0.18 * whole, "min": 0.0 * whole, "max": whole}
    for part in (policy, *make_pre_post_processors(policy.config, dataset_stats=statistics)):
        part.save_pretrained(directory)


def loaded(directory: str) -> tuple[typing.Any, ...]:
    """Return the configuration of a saved policy, the policy, and its processors before and after it."""
    torch.set_num_threads(1)
    config: typing.Any = PreTrainedConfig.from_pretrained(directory)
    policy = get_policy_class(config.type).from_pretrained(directory, config=config)
    return (config, policy, *make_pre_post_processors(config, pretrained_path=directory))


def query_loop(directory: str, edge: str, *pictures: str) -> None:
    """Answer each line, a number of env slots, with the time of the query."""
    _, policy, before, after = loaded(directory)
    edge_px = int(edge)

    def ask(num_slots: int) -> dict[str, float]:
        pixels = {name.rpartition(".")[2]: np.zeros((num_slots, edge_px, edge_px, 3), np.uint8) for name in pictures}
        seen: typing.Any = {"pixels": pixels, "agent_pos": np.zeros((num_slots, 2), np.float32)}
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        with torch.inference_mode():
            after(policy.predict_action_chunk(before(preprocess_observation(seen)))).numpy()
        return {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}

    serve({"ready": True}, ask)


def select_action_loop(directory: str, shown_in: str, actions_in: str) -> None:
    """Answer every episode: ``state``, pictures by camera, and ``seeds`` of the noise of each look."""
    config, policy, before, after = loaded(directory)
    for path in sorted(pathlib.Path(shown_in).glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            shown = dict(arrays)
        policy.reset()
        actions = []
        for step, state in enumerate(shown["state"]):
            pixels = {name: shown[name][step] for name in shown.keys() - {"state", "seeds"}}
            observation = before(preprocess_observation({"pixels": pixels, "agent_pos": state}))
            noise = {}
            if config.type == "diffusion" and step % config.n_action_steps == 0:
                generator = torch.Generator().manual_seed(int(shown["seeds"][step // config.n_action_steps]))
                [action_dim] = config.action_feature.shape
                noise = {"noise": torch.randn((config.horizon, action_dim), generator=generator)[None]}
            with torch.inference_mode():
                action = policy.select_action(observation, **noise)
            actions.append(after(action)[0].numpy())
        np.save(pathlib.Path(actions_in) / f"{path.stem}.npy", np.stack(actions))


if __name__ == "__main__":
    PROGRAMS = {"untrained_act": untrained_act, "query_loop": query_loop, "select_action_loop": select_action_loop}
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
