"""Training from clients that drive the loop: they ask a server for actions, and send rewards and ends of episodes."""
