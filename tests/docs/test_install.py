"""What is installed from a wheel is whole: data files are in it, and the commands run far from the source tree.

The wheel is built and installed from this tree without any download; what Swarm depends on comes from the interpreter
that runs the tests.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("swarm", "tracker", "mirror", "engine", "tui")
DATA = {".toml", ".html", ".css", ".js", ".svg", ".json", ".safetensors", ".tcss", ".txt", ".typed"}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution, built from this tree."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    return wheel, source


def wanted() -> set[str]:
    """Every file of code or data below the packages."""
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix in DATA | {".py"}
    }


def test_the_wheel_holds_code_and_data_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert wanted() <= names
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    assert [name for name in names if name.endswith((".pyc", ".nbi", ".nbc"))] == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_source_distribution_can_be_built_and_tested_from(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[1]) as source:
        names = {name.split("/", 1)[1] for name in source.getnames() if "/" in name}
    assert wanted() <= names
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "contrib/Containerfile",
        "docs/commands.md",
    } <= names
    assert "tests/conftest.py" in names


@pytest.mark.slow
def test_an_installed_wheel_runs(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    """The version, the doctor, completion and the demonstration, from a new environment and an empty home."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    asked = "import site; print(site.getsitepackages()[0])"
    packages = Path(
        subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    )
    ours = "\n".join(path for path in sys.path if path.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(ours)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index",
         "--disable-pip-version-check", "--ignore-installed", "--no-compile", str(distributions[0])],
        check=True,
    )  # fmt: skip
    home = tmp_path / "home"
    home.mkdir()
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("SWARM_", "PYTHON"))
    }
    variables |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "TMPDIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [place / "bin" / "swarm", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            cwd=tmp_path, env=variables, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run("--version").split()[0] == "swarm"
    assert "nothing essential fails" in run("doctor", "--port", "0").lower()
    for shell in ("bash", "zsh", "fish"):
        assert "_SWARM_COMPLETE" in run("completion", shell)
    assert "That was a swarm." in run("demo")
