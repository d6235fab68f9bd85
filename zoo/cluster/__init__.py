"""A run on many processes or machines: ranks that learn together, runners that collect for them."""
