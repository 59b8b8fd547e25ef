"""The names of environments, suites of them, embodiments and objects."""

from isaaclab_arena.registry import Registry

ENVIRONMENTS = Registry(
    "environment",
    {
        "reach": "isaaclab_arena.environments.tasks.reach:REACH",
        "lift_object": "isaaclab_arena.environments.tasks.lift_object:LIFT_OBJECT",
        "pick_and_place": "isaaclab_arena.environments.tasks.pick_and_place:PICK_AND_PLACE",
        "open_drawer": "isaaclab_arena.environments.tasks.articulated:OPEN_DRAWER",
        "close_drawer": "isaaclab_arena.environments.tasks.articulated:CLOSE_DRAWER",
        "open_microwave": "isaaclab_arena.environments.tasks.articulated:OPEN_MICROWAVE",
        "stack": "isaaclab_arena.environments.tasks.two_cubes:STACK",
        "pick_by_colour": "isaaclab_arena.environments.tasks.two_cubes:PICK_BY_COLOUR",
        "sort_two": "isaaclab_arena.environments.tasks.two_cubes:SORT_TWO",
        "push_to_goal": "isaaclab_arena.environments.tasks.pushing:PUSH_TO_GOAL",
        "push_cube": "isaaclab_arena.environments.tasks.pushing:PUSH_CUBE",
        "walk_humanoid": "isaaclab_arena.environments.tasks.walk_humanoid:WALK_HUMANOID",
        "track_motion": "isaaclab_arena.environments.tasks.track_motion:TRACK_MOTION",
        "press_button": "isaaclab_arena.environments.tasks.press_button:PRESS_BUTTON",
        "cartpole": "isaaclab_arena.environments.tasks.cartpole:CARTPOLE",
        "velocity_go1": "isaaclab_arena.environments.tasks.velocity_go1:VELOCITY_GO1",
    },
    entry_point_group="isaaclab_arena.environments",
    schemes={
        "gym": "isaaclab_arena.environments.gym.builder:gymnasium_environment",
        "metaworld": "isaaclab_arena.environments.gym.builder:meta_world_environment",
        "libero": "isaaclab_arena.environments.libero:libero_environment",
        "robosuite": "isaaclab_arena.environments.gym.builder:robosuite_environment",
        "vla_eval": "isaaclab_arena.environments.gym.builder:vla_eval_environment",
    },
    lookalikes={r"[\w./:-]+-v\d+": "gym:{}", r"[a-z]+(-[a-z]+)*-v3": "metaworld:{}"},
)

SUITES = Registry(
    "suite",
    {
        **{
            name: f"isaaclab_arena.environments.libero:{name.upper()}"
            for name in ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
        },
        "metaworld_mt10": "isaaclab_arena.environments.suites:METAWORLD_MT10",
        "metaworld_mt50": "isaaclab_arena.environments.suites:METAWORLD_MT50",
    },
    entry_point_group="isaaclab_arena.suites",
    schemes={
        "libero": "isaaclab_arena.environments.libero:LiberoSuite",
        "vla_eval": "isaaclab_arena.environments.gym.builder:VlaEvalSuite",
    },
)

EMBODIMENTS = Registry(
    "embodiment",
    {
        "panda": "isaaclab_arena.environments.robots.embodiment:PANDA",
        "so101": "isaaclab_arena.environments.robots.embodiment:SO101",
    },
    entry_point_group="isaaclab_arena.embodiments",
    schemes={"menagerie": "isaaclab_arena.environments.robots.described:menagerie_embodiment"},
)

_OBJECTS = ("cube", "cylinder", "can", "bottle", "mug", "cracker_box", "plate", "bin", "blue_cube")

OBJECTS = Registry(
    "object",
    {name: f"isaaclab_arena.environments.objects:{name.upper()}" for name in _OBJECTS},
    entry_point_group="isaaclab_arena.objects",
)
