"""Which questions of a run are answered, and after how many episodes: looked at after every one, and still right."""
