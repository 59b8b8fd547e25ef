"""What a task is made of: actions, observations, rewards and success as functions of tensors."""
