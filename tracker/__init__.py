"""Who holds what: the index of a swarm, which never holds a model byte."""
