"""What directories are called."""

from pathlib import Path

from swarm.api.libraries import named


def test_directories_are_told_apart() -> None:
    plain, first, second, third = Path("/x/plain"), Path("/a/b/model"), Path("/a/c/model"), Path("/d/c/model")
    assert named([plain, first]) == {"plain": plain, "model": first}
    assert named([plain, first, first]) == {"plain": plain, "model": first}
    assert named([plain, first, second]) == {"plain": plain, "b/model": first, "c/model": second}
    assert named([first, second, third]) == {"b/model": first, "a/c/model": second, "d/c/model": third}
    assert named([]) == {}
