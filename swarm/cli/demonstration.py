"""What `swarm demo` shows. What it starts ends with it; what it writes is removed at the end."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.cli.output import say
from swarm.demo.machines import Machine, environment, machine

QUESTION = "What is a tracker?"
GENERATED_TOKENS = 40
RAM = "200MB"
DISK = "100MB"
LOCAL = ("--listen", "127.0.0.1")


@dataclass(frozen=True)
class DemoModel:
    """The model to show. `speaks`: it was trained."""

    directory: Path
    speaks: bool

    @property
    def options(self) -> list[str]:
        """How to chat with it: always with the likeliest token, so that answers can be compared."""
        limit = [] if self.speaks else ["--max-tokens", str(GENERATED_TOKENS)]
        return ["--temperature", "0", *limit]


@dataclass(frozen=True)
class Swarm:
    """A swarm that runs on this machine."""

    place: Path
    """Below which every machine has its home."""
    model: DemoModel
    invite: str
    origin: Machine
    donors: tuple[Machine, Machine]
    disk: Machine

    @property
    def disk_home(self) -> Path:
        """Where the disk donor keeps the model."""
        return self.disk.home


def demonstrate(question: str | None, tour: bool) -> int:
    """Runs the demonstration; the exit code of the command."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="swarm-demo-") as folder:
        place = Path(folder)
        model = demo_model(place)
        if not model.speaks:
            say("This demonstration's model has random weights: it is real in all but what it says.")
        if question is not None:
            with ExitStack() as stack:
                invite = _origin(stack, place, model)[1]
                say(f"Asking: {question}")
                plain = ["chat", invite, "--plain", *model.options]
                return _run(place / "chat", plain, f"{question}\n")
        if tour or not on_terminal:
            from swarm.cli.tour import show

            return show(place, model)
        with running_swarm(place, model) as swarm:
            say("The chat opens; /swarm shows these machines, /help the rest, Ctrl-D leaves.")
            return _run(place / "chat", ["chat", swarm.invite])


def demo_model(place: Path) -> DemoModel:
    """The trained model that ships with Swarm, or one with random weights where it is missing."""
    trained = Path(__file__).resolve().parents[1] / "demo" / "model"
    if (trained / "config.json").is_file() and (trained / "model.safetensors").is_file():
        return DemoModel(trained, True)
    from swarm.demo.generated import write_checkpoint

    generated = place / "random-model"
    write_checkpoint(generated)
    return DemoModel(generated, False)


@contextmanager
def running_swarm(place: Path, model: DemoModel) -> Iterator[Swarm]:
    """A tracker with the origin, two donors of compute and one of disk, for the length of a block."""
    with ExitStack() as stack:
        origin, invite = _origin(stack, place, model)
        say("Starting two donors of compute and a donor of disk, on machines of their own …")
        compute = ("donate", "compute", invite, *LOCAL, "--ram", RAM, "--json")
        first = stack.enter_context(machine("first donor", place / "donor-1", *compute))
        second = stack.enter_context(machine("second donor", place / "donor-2", *compute))
        lend = ("donate", "disk", invite, *LOCAL, "--size", DISK, "--json")
        disk = stack.enter_context(machine("disk donor", place / "disk", *lend))
        origin.event("executing")
        for donor, unit in ((first, "experts"), (second, "experts"), (disk, "MiB of the model")):
            held = ready(donor)
            say(f"  the {donor.name} has fetched and verified what it needs: {held} {unit}")
        yield Swarm(place, model, invite, origin, (first, second), disk)


def ready(donor: Machine) -> int:
    """Waits until a donor holds all it was assigned; how much that is."""
    while True:
        event = donor.event("lending")
        if event["assigned"] and event["ready"] == event["assigned"]:
            return int(event["ready"])


def _origin(stack: ExitStack, place: Path, model: DemoModel) -> tuple[Machine, str]:
    say("Starting the server (tracker and origin) …")
    serve = ("serve", "--model", model.directory, "--name", "demo", "--port", "0", *LOCAL, "--json")
    origin = stack.enter_context(machine("server", place / "origin", *serve))
    facts = origin.event("serving")
    say(f"  it serves “{facts['model']}” at {facts['address']}, signed by operator {facts['operator'][:16]}")
    return origin, str(facts["invite"])


def _run(home: Path, arguments: list[str], question: str | None = None) -> int:
    """Runs a command to its end, on our terminal or with one question as its input."""
    home.mkdir()
    command = [sys.executable, "-m", "swarm", *arguments]
    return subprocess.run(command, input=question, text=True, env=environment(home), check=False).returncode
