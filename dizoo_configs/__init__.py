"""Bundled configs: <env>_<policy>_config.py, each defines a dict `config` of the differences from the defaults."""
