"""Job files as nobody would write them: right ones with something wrong at random places, in JSON and in YAML."""

import json
import random
import string
from typing import Any

import yaml

KEYS = (
    "name", "arena_env_args", "policy_type", "policy_config_dict", "policy_args", "num_episodes", "num_steps",
    "num_rebuilds", "language_instruction", "variations", "conditions", "seed", "timeout_s", "episode_timeout_s",
    "status", "sweep", "environment", "num_envs", "enable_cameras", "placement_seed", "env_spacing", "object",
    "embodiment", "backend", "camera_size", "action_mode", "jobs", "defaults", "variables", "checkpoint_path",
    "replay_file_path", "policy_device", "device", "<<", "nmae", "", " ", "a.b", "\u202e", "x" * 300,
)  # fmt: skip
SCALARS = (
    None, True, False, 0, 1, -1, 2, 2**31, 2**63-1, 2**63, 2**64, 10**30, 10**308, 0.0, -0.0, 0.5, 1e308,
    -1e308, 5e-324, "", " ", "0", "1", "010", "0o17", "0x1f", "1_000", "1:30", "yes", "no", "on", "off", "null",
    "~", "nan", ".inf", "1e400", "true", "2026-01-01", "???", "<<", "=", "!!int 3", "&a", "*a", "{", "[", "- x",
    "a: b", "#", "%", "@", "`", "\t", "\n", "\r", "\0", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u200b",
    "\u202e", "\ufeff", "\ud800", "\U0001f600", "e\u0301", "\u0456", "x"* 500, "../../etc/passwd", "/dev/zero",
    "/dev/null", "/", ".", "..", "CON", "~", "~root", "file:///", "a"* 5000, "*", "**", "lift_object", "reach",
    "cartpole", "push_cube", "zero_action", "scripted", "replay", "rsl_rl", "random_action", "cube", "can",
    "panda", "so101", "warp", "mujoco", "cuda:99", "cpu", "no.such.Policy", "json.loads", "os.path", ":", "::",
    "gym:CartPole-v1", "metaworld:x", "menagerie:x", "robot.yaml", "x.yml", "#set", "pending", "completed",
    "failed",
)  # fmt: skip
REFERENCES = (
    "${", "${}", "${.}", "${..}", "${...seed}", "${.seed}", "${..jobs}", "${jobs}", "${jobs[0]}",
    "${jobs[0].name}", "${job}", "${defaults}", "${defaults.seed}", "${variables}", "${variables.a}",
    "${variables.b}", "${variables.c}", "${value}", "${variables.${variables.a}}",
    "${variables.a}${variables.b}", "${oc.env:HOME}", "${oc.env:NO_SUCH_VARIABLE_HERE}",
    "${oc.env:NO_SUCH_VARIABLE_HERE,${.seed}}", "${oc.decode:'[1,2'}", "${oc.decode:'1e400'}",
    "${oc.create:{a: 1}}", "${oc.select:jobs}", "${oc.dict.keys:variables}", "${oc.dict.values:defaults}",
    "${oc.deprecated:seed}", "${no:such}", "\\${seed}", "$${seed}", "{seed}", "{variables.a}", "${a b}",
    "${'a'}", "${.arena_env_args.environment}", "${.name}",
)  # fmt: skip
DECORATIONS = ("&a ", "*a", "!!str ", "!!int ", "!!float ", "!!binary ", "!!set ", "!local ", "!!python/none ", "? ")


class JobFileGenerator:
    """Draws job files from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def file(self) -> tuple[str, bytes]:
        """Return the suffix of a file and what it holds."""
        document = self._document()
        for _ in range(self._random.choice((0, 0, 1, 1, 2, 4))):
            document = self._spoilt(document, 0)
        suffix = self._random.choice(("json", "yaml", "yml", "jobs"))
        is_json = suffix == "json" or self._random.random() < 0.3
        text = json.dumps(document, ensure_ascii=self._random.random() < 0.5) if is_json else self._yaml(document)
        if self._random.random() < 0.4:
            text = self._mangled(text)
        return suffix, self._encoded(text)

    def _document(self) -> Any:
        return {
            "variables": {"a": self._scalar(), "b": "${variables.a}", "c": {"x": [1, "${variables.b}"]}},
            "defaults": {"seed": self._random.randrange(3)},
            "jobs": [self._job(number) for number in range(self._random.choice((1, 1, 2, 5)))],
        }

    def _job(self, number: int) -> dict[str, Any]:
        job: dict[str, Any] = {
            "name": f"job{number}",
            "arena_env_args": {"environment": self._random.choice(("reach", "lift_object", "cartpole")), "num_envs": 2},
            "policy_type": self._random.choice(["zero_action"] * 2 + ["random_action"] * 2 + ["replay"]),
            "num_episodes": 3,
        }
        if self._random.random() < 0.3:
            job["sweep"] = {"seed": [0, 1], "arena_env_args.num_envs": [1, self._random.choice((2, 3, self._scalar()))]}
        if self._random.random() < 0.1:
            job["arena_env_args"] = ["--num_envs", str(self._scalar()), "reach", str(self._scalar())]
        return job

    def _spoilt(self, value: Any, depth: int) -> Any:
        """Return a value with one thing in it replaced, added or taken away."""
        if isinstance(value, dict) and value and self._random.random() < 0.9:
            value = dict(value)
            key = self._random.choice(list(value))
            how = self._random.random()
            if how < 0.15:
                value.pop(key)
            elif how < 0.35:
                value[self._random.choice(KEYS)] = self._anything(depth)
            else:
                value[key] = self._spoilt(value[key], depth + 1)
            return value
        if isinstance(value, list) and value and self._random.random() < 0.9:
            place = self._random.randrange(len(value))
            return [*value[:place], self._spoilt(value[place], depth + 1), *value[place + 1 :]]
        return self._anything(depth)

    def _anything(self, depth: int) -> Any:
        how = self._random.random()
        if how < 0.4 or depth > 6:
            return self._scalar()
        if how < 0.6:
            return self._random.choice(REFERENCES) * self._random.choice((1, 1, 1, 2, 50))
        if how < 0.65:
            return self._nested(self._random.choice((3, 20, 63, 64, 65, 70, 200)))
        if how < 0.8:
            return [self._anything(depth + 1) for _ in range(self._random.randrange(4))]
        return {self._random.choice(KEYS): self._anything(depth + 1) for _ in range(self._random.randrange(4))}

    def _scalar(self) -> Any:
        if self._random.random() < 0.1:
            return "".join(self._random.choices(string.printable, k=self._random.randrange(20)))
        return self._random.choice(SCALARS)

    def _nested(self, levels: int) -> Any:
        value: Any = self._scalar()
        for _ in range(levels):
            value = [value] if self._random.random() < 0.5 else {self._random.choice(("a", "b", "sweep")): value}
        return value

    def _yaml(self, document: Any) -> str:
        try:
            text = yaml.safe_dump(document, allow_unicode=self._random.random() < 0.5, width=1000)
        except (UnicodeError, RecursionError):
            return json.dumps(document)
        return self._bombs() + text if self._random.random() < 0.2 else text

    def _bombs(self) -> str:
        """Return aliases, or merged mappings, that double at every level."""
        levels = range(1, self._random.choice((2, 5, 12, 25, 60)))
        if self._random.random() < 0.5:
            return "\n".join(["x0: &x0 [1, 2]", *(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]" for n in levels), ""])
        merged = (f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}], k{n}: 1}}" for n in levels)
        return "\n".join(["x0: &x0 {name: a}", *merged, ""])

    def _mangled(self, text: str) -> str:
        """Return a text with some of its characters lost, doubled or in the place of others."""
        for _ in range(self._random.randrange(1, 4)):
            place = self._random.randrange(len(text) + 1)
            end = min(len(text), place + self._random.randrange(1, 30))
            drawn = self._random.choice(("", text[place:end] * 2, *DECORATIONS, str(self._scalar())))
            text = text[:place] + drawn + text[end:]
        return text

    def _encoded(self, text: str) -> bytes:
        how = self._random.random()
        encoding = "utf-16" if how < 0.03 else "utf-32" if how < 0.05 else "latin-1" if how < 0.08 else "utf-8"
        data = text.encode(encoding, errors="surrogatepass" if encoding.startswith("utf") else "replace")
        if how > 0.95:
            data = b"\xef\xbb\xbf" + data
        if how > 0.97:
            place = self._random.randrange(len(data))
            data = data[:place] + bytes([self._random.randrange(256)]) + data[place + 1 :]
        return data
