"""One run: its config, its loop, its files, its signals and threads."""
