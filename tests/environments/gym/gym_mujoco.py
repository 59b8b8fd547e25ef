"""An arm, a box and a camera in MuJoCo, without a renderer; importing this registers them as ``Fake/Pushed-v0``.

Nothing is imported here that a worker's interpreter might not have.
"""

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

SCENE = """
<mujoco>
  <compiler angle="radian"/>
  <asset><material name="felt" rgba="0.2 0.8 0.4 1"/></asset>
  <worldbody>
    <light pos="0 0 3" diffuse="0.6 0.6 0.6"/>
    <camera name="front" pos="0 -1 1" xyaxes="1 0 0 0 1 1"/>
    <geom name="floor" type="plane" size="2 2 0.1" material="felt"/>
    <body name="arm" pos="0 0 0.5">
      <joint name="turn" axis="0 0 1" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
      <body name="hand" pos="0.3 0 0">
        <joint name="bend" axis="0 1 0" range="-0.02 1" limited="true" damping="1"/>
        <geom type="capsule" fromto="0 0 0 0.2 0 0" size="0.03"/>
      </body>
    </body>
    <body name="box" pos="0.5 0.5 0.1">
      <freejoint/>
      <geom type="box" size="0.05 0.05 0.05" mass="{mass}" rgba="0.8 0.2 0.2 1"/>
    </body>
  </worldbody>
  <actuator><motor joint="turn"/><motor joint="bend"/></actuator>
</mujoco>
"""


class PushedEnvironment(gymnasium.Env):
    """Starts with a box that slides; its picture is made of all that a renderer would look at.

    ``fresh`` compiles the model again at each reset. ``observes``: "again" as in the reset, or "otherwise".
    """

    def __init__(self, *, fresh=False, observes="again"):
        self.fresh, self.observes = fresh, observes
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.build()
        shown = spaces.Box(-np.inf, np.inf, self.numbers().shape, np.float64)
        self.observation_space = spaces.Dict({"place": shown, "front": spaces.Box(0, 255, (8, 8, 3), np.uint8)})

    def build(self):
        self.model = mujoco.MjModel.from_xml_string(SCENE.format(mass=0.1))
        self.data = mujoco.MjData(self.model)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fresh:
            self.build()
        mujoco.mj_resetData(self.model, self.data)
        # It touches the arm's picture, and slides away from it.
        self.data.qvel[2:4] = self.np_random.uniform(1.0, 2.0, 2)
        mujoco.mj_forward(self.model, self.data)
        return self._get_obs() if self.observes == "again" else {**self._get_obs(), "place": 1 + self.numbers()}, {}

    def step(self, action):
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, 50)
        return self._get_obs(), 0.0, False, False, {}

    def numbers(self):
        return np.concatenate([self.data.qpos, self.data.qvel])

    def _get_obs(self):
        model, data, headlight = self.model, self.data, self.model.vis.headlight
        seen = data.cam_xpos, data.cam_xmat, data.geom_xpos, model.geom_rgba, model.light_diffuse, headlight.diffuse
        pixels = 1e3 * np.concatenate([np.ravel(each) for each in seen])
        return {"place": self.numbers(), "front": np.resize(pixels.astype(np.int64), (8, 8, 3)).astype(np.uint8)}


class UnseenEnvironment(PushedEnvironment):
    """Has nothing to observe it with but its own reset and step."""

    _get_obs = None  # pyright: ignore[reportAssignmentType]

    def reset(self, *, seed=None, options=None):
        self.data.qpos[:] = self.model.qpos0
        return {"place": self.numbers(), "front": np.zeros((8, 8, 3), np.uint8)}, {}


gymnasium.register("Fake/Pushed-v0", entry_point=f"{__name__}:PushedEnvironment", max_episode_steps=20)
gymnasium.register("Fake/Unseen-v0", entry_point=f"{__name__}:UnseenEnvironment", max_episode_steps=20)
