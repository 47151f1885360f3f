"""The command line: one file a command, and the only place where everything is put together.

Nothing heavy is imported before a command runs, so `swarm --help` answers at once.
"""
