"""Config sections with typed fields, their sources and error messages, and values that change during a run."""
