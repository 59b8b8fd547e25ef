"""What robosuite's environments look like to those who read their cameras, without robosuite.

An observable is read once in a control step, at one of its physics steps. A new sensor is tried at once, and a hard
reset brings new ones.
"""

import numpy as np

SUBSTEPS = 5


class Observable:
    """A reading with a clock."""

    def __init__(self, name, sensor, sampling_timestep_s):
        self.name, self._sampling_timestep = name, sampling_timestep_s
        self.set_sensor(sensor)
        self.reset()

    def set_sensor(self, sensor):
        self._sensor = sensor
        self._shape = np.array(sensor({})).shape

    def reset(self):
        self._time, self._sampled, self.obs = 0.0, False, np.zeros(self._shape)

    def update(self, timestep_s, cache, *, force=False):
        self._time += timestep_s
        if not self._sampled or force:
            self.obs = np.array(self._sensor(cache))
            cache[self.name] = self.obs
            self._sampled = True
        if self._time >= self._sampling_timestep - 1e-9:
            self._time, self._sampled = 0.0, False


class Observed:
    """Reads its sensors with observables."""

    control_timestep = 0.05
    _observables: dict[str, Observable]

    def sensors(self):
        raise NotImplementedError

    def modify_observable(self, name, attribute, modifier):
        assert attribute == "sensor"
        self._observables[name].set_sensor(modifier)

    def renew(self, *, hard=True):
        sensors = self.sensors()
        for name, observable in self._observables.items():
            observable.reset()
            if hard:
                observable.set_sensor(sensors[name])
        self.read({}, force=True)

    def read(self, cache, *, force=False):
        for observable in self._observables.values():
            observable.update(self.control_timestep / SUBSTEPS, cache, force=force)

    def shown(self):
        shown = {name: each.obs for name, each in self._observables.items()}
        return {name: each.astype(np.uint8 if "image" in name else float) for name, each in shown.items()}


class PointTask(Observed):
    """A point that actions push, seen by a camera; in its place robosuite has a MujocoEnv."""

    control_freq = 20
    action_spec = -np.ones(1), np.ones(1)

    def __init__(self, *, hard_reset=True, camera_period_s=0.05, depth=False):
        self.hard_reset, self.depth, self.drawn, self.cameras_read = hard_reset, depth, 0, 0
        self.rng, self.place = np.random.default_rng(0), 0.0
        self._observables = {name: self.observable(name, camera_period_s) for name in self.sensors()}

    def observable(self, name, period_s):
        return Observable(name, self.sensors()[name], period_s if name.startswith("front") else 0.05)

    def sensors(self):
        def front_image(cache):
            self.drawn += 1
            value = int(1e4 * abs(self.place)) % 256
            cache["front_depth"] = np.full((4, 4, 1), self.place)
            return np.full((4, 4, 3), value, np.uint8)

        def front_depth(cache):
            return cache.get("front_depth", np.zeros((4, 4, 1)))

        def place(cache):
            return np.array([self.place])

        sensors = {"front_image": front_image, **({"front_depth": front_depth} if self.depth else {}), "place": place}
        for sensor in sensors.values():
            sensor.__module__ = "robosuite.environments.robot_env"
        return sensors

    def reset(self):
        self.place = self.rng.uniform(-1, 1)
        self.renew(hard=self.hard_reset)
        return self.shown()

    def step(self, action):
        cache = {}
        for _ in range(SUBSTEPS):
            self.place += 0.1 * float(action[0])
            self.read(cache)
        return self.shown(), 0.0, False, {}

    def _check_success(self):
        return False
