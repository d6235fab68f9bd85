"""Executors of update steps and actions: eager PyTorch, C, compiled graphs."""
