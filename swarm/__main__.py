"""`python -m swarm`: the command line, where its script is not on the path."""

from swarm.cli import main

if __name__ == "__main__":
    main()
