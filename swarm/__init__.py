"""The peers of a swarm and their language."""
