"""Models, motions and descriptions that come along, as files; and the door of Isaac Lab Arena's registrations."""
