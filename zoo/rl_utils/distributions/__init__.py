"""Action distributions, one family a file; each registers itself under its name."""
