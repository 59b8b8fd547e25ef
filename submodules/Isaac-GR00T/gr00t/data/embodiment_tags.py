"""Name the robots that a checkpoint may know."""

import difflib
from enum import Enum

from gr00t import EmbodimentError

_LATER_NAMES = {
    "unitree_g1_full_body_with_waist_height_nav_cmd": "UNITREE_G1",
    "libero_sim": "LIBERO_PANDA",
    "sim_behavior_r1_pro": "BEHAVIOR_R1_PRO",
    "simpler_env_google": "OXE_GOOGLE",
    "simpler_env_widowx": "OXE_WIDOWX",
}
"""Names of some robots in GR00T N1.7."""


class EmbodimentTag(Enum):
    """A robot with its own state and action projectors in the model. Names and values are those of GR00T N1.6."""

    ROBOCASA_PANDA_OMRON = "robocasa_panda_omron"
    GR1 = "gr1"
    UNITREE_G1 = "unitree_g1"
    LIBERO_PANDA = "libero_panda"
    OXE_GOOGLE = "oxe_google"
    OXE_WIDOWX = "oxe_widowx"
    OXE_DROID = "oxe_droid"
    BEHAVIOR_R1_PRO = "behavior_r1_pro"
    NEW_EMBODIMENT = "new_embodiment"

    @classmethod
    def resolve(cls, tag: "str | EmbodimentTag") -> "EmbodimentTag":
        """Return the tag with this name or value, in any case; names of GR00T N1.7 work too.

        Raises:
            EmbodimentError: If there is none; the message lists them.
        """
        if isinstance(tag, cls):
            return tag
        wanted = str(tag).strip().lower()
        if wanted in _LATER_NAMES:
            return cls[_LATER_NAMES[wanted]]
        for member in cls:
            if wanted in (member.name.lower(), member.value.lower()):
                return member
        close = difflib.get_close_matches(wanted, [member.value for member in cls], n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        known = ", ".join(member.name for member in cls)
        raise EmbodimentError(f"no embodiment tag called {tag!r}{hint} (known are: {known})")
