"""Register environments with Gymnasium and Gym, for programs that make environments by id."""
