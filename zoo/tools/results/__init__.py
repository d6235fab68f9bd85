"""Finished and running runs as data: reads them, draws them, compares them, reports on them."""
