"""Bundled configs: <env>_<policy>_config.py, each a dict `config` with what differs from the defaults."""
