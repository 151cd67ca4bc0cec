"""The training loop, its recipes and checkpoints."""
