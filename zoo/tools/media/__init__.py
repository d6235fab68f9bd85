"""Pictures of a policy in its env: videos, and a window that shows it play."""
