"""Learning from demonstrations before a run: recording them, behaviour cloning."""
