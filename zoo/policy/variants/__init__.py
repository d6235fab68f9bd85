"""Variants of PPO and PPG, and other families of policies."""
