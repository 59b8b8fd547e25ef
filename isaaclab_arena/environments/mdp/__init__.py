"""The parts of a task: actions, observations, rewards and success as functions of tensors."""
