"""What an operator copies: the dashboard asks for metrics that exist, and the units start commands that exist."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from swarm.cli.frame import swarm
from swarm.peers import metrics

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
UNITS = sorted(CONTRIB.glob("systemd/*.service"))


def names_kept() -> set[str]:
    """The metrics that the code writes, as Prometheus names them."""
    text = Path(metrics.__file__).read_text(encoding="utf-8")
    flat = re.sub(r"\s+", " ", text)
    found = re.findall(r'Sample\(\s*"(\w+)",(.*?)\)(?= (?:yield|return|departures|def))', flat)
    return {f"swarm_{name}{'_total' if 'counter=True' in rest else ''}" for name, rest in found}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((CONTRIB / "grafana.json").read_text(encoding="utf-8"))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"swarm_\w+", target["expr"])
    }
    assert len(asked) >= 15
    assert asked <= names_kept()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    line = re.search(r"^ExecStart=/opt/swarm/bin/swarm (.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    words = shlex.split(line[1].replace("%i", "compute"))
    command: click.Command = swarm
    context = click.Context(swarm, info_name="swarm")
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_put_no_secret_into_the_list_of_processes(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=.*$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"\$\{?(\w+)", line)) <= {"SWARM_MODEL", "SWARM_OPTIONS"}


def test_what_is_copied_from_the_pages_puts_no_secret_into_the_list_of_processes() -> None:
    options = re.compile(r"SWARM_OPTIONS=(.*)|(?:podman|docker) run(.*)")
    secret = re.compile(r"swarm://|--(?:token|api-key)(?!-file)\b")
    for path in [
        *UNITS,
        CONTRIB / "Containerfile",
        CONTRIB.parent / "DEPLOY.md",
        CONTRIB.parent / "README.md",
    ]:
        for match in options.finditer(path.read_text(encoding="utf-8")):
            assert not secret.search(match[0]), f"{path.name}: {match[0]}"
    # In a command that is typed as well: an invite of a private swarm is the user's to judge, a token never is.
    for path in (CONTRIB.parent / "DEPLOY.md", CONTRIB.parent / "README.md"):
        assert not re.search(r"--(?:token|api-key)(?!-file)\b", path.read_text(encoding="utf-8")), path.name


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = unit.read_text(encoding="utf-8").replace("/opt/swarm/bin/swarm", "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text, encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert not checked.stderr.strip()
