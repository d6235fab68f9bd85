"""Several agents in one env: their envs as tables of rows, the policies that act for the rows, and their samples."""
