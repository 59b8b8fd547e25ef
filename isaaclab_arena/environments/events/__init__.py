"""What happened in an episode, as pure functions of the states that it went through."""
