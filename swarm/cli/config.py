"""`swarm config`: what is remembered between runs, by all commands and by the terminal; shown and changed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from swarm.peers.settings import Home

WEB = ("on", "off")
LENDING = ("off", "disk", "compute", "both")


@dataclass(frozen=True)
class Setting:
    """One thing that is remembered. Where it lies: a field of settings.json or of terminal.json."""

    meaning: str
    field: str
    of_terminal: bool
    read: Callable[[str], Any]
    """The value of a text. A click.UsageError or SwarmError for one that makes no sense."""
    default: Any = None
    show: Callable[[Any], str] = str


def settings() -> Mapping[str, Setting]:
    """All of them, by name."""
    from swarm.units import format_bytes
    from tui.commands import DISPLAY, SETTING_VALUES
    from tui.preferences import Preferences

    def shared(meaning: str, field: str, read: Callable[[str], Any], **more: Any) -> Setting:
        return Setting(meaning, field, False, read, **more)

    def terminal(meaning: str, field: str, read: Callable[[str], Any], default: Any, **more: Any) -> Setting:
        return Setting(meaning, field, True, read, default, **more)

    usual = Preferences()
    return {
        "swarm": shared("the swarm used last: its invite or address", "swarm", _swarm, show=_without_secret),
        "model": shared("the model chosen last", "model", str),
        "cache-limit": shared("most disk space for chunks", "cache_bytes", _size, show=format_bytes),
        "web": shared(
            "whether web sources of a model are asked: on, off", "web", _one_of("web", WEB), default="on"
        ),
        **{
            name: terminal(meaning, name, _one_of(name, SETTING_VALUES[name]), getattr(usual, name))
            for name, meaning in DISPLAY.items()
        },
        "lend": terminal("what the terminal lends: off, disk, compute or both", "lend", _lending, ""),
        "lend-disk": terminal("disk space that it lends", "lend_disk_bytes", _size, 0, show=format_bytes),
        "lend-ram": terminal("memory that it lends", "lend_ram_bytes", _size, 0, show=format_bytes),
    }


@click.command("config", short_help="Show and change what is remembered.")
@click.argument("name", required=False, metavar="[NAME]")
@click.argument("value", required=False, metavar="[VALUE]")
@click.option("--unset", is_flag=True, help="Forget NAME, so that its default counts, or one is asked again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str | None, value: str | None, unset: bool, as_json: bool) -> None:
    """Show and change what is remembered between runs, by all commands and by the terminal.

    Without NAME everything is listed; an invite, which may hold a secret, only by its address. Flags of a command win
    over all of it, and what is changed counts from the next start on.
    """
    from swarm.cli.output import emit_json, table
    from swarm.peers.settings import home

    known, paths = settings(), home()
    if name is not None and name not in known:
        raise click.UsageError(f"There is no setting {name}; there are {', '.join(known)}.")
    if name is None and unset:
        raise click.UsageError("--unset takes the NAME of a setting.")
    if name is not None and (unset or value is not None):
        if unset and value is not None:
            raise click.UsageError("Give a VALUE or --unset, not both.")
        _change(paths, known[name], known[name].default if value is None else known[name].read(value), unset)
    stored = _stored(paths)
    values = {one: stored[setting.field] for one, setting in known.items()}
    if as_json:
        emit_json(values if name is None else {name: values[name]})
    elif name is not None:
        print(_shown(known[name], values[name], whole=True))
    else:
        rows = [(one, _shown(setting, values[one]), setting.meaning) for one, setting in known.items()]
        print(table(("SETTING", "VALUE", ""), rows))


def _stored(paths: "Home") -> dict[str, Any]:
    from dataclasses import asdict

    from swarm.peers.settings import load_remembered
    from tui.preferences import load

    return asdict(load_remembered(paths.settings)) | asdict(load(paths.terminal))


def _change(paths: "Home", setting: Setting, value: Any, unset: bool) -> None:
    from swarm.peers.settings import remember
    from tui.preferences import keep, load

    if not setting.of_terminal:
        remember(paths.settings, **{setting.field: value})
        return
    preferences, changes = load(paths.terminal), {setting.field: value}
    if setting.field == "lend":
        changes["asked"] = not unset
        sizes = {"disk": preferences.lend_disk_bytes, "ram": preferences.lend_ram_bytes}
        wanted = {"disk": ("disk",), "compute": ("ram",), "both": ("disk", "ram")}.get(value, ())
        for kind in wanted:
            if not sizes[kind]:
                raise click.UsageError(f"Say first how much: swarm config lend-{kind} SIZE.")
    keep(paths.terminal, **changes)


def _shown(setting: Setting, value: Any, *, whole: bool = False) -> str:
    if value is None or value in ("", 0):
        return "-"
    return str(value) if whole and setting.show is _without_secret else setting.show(value)


def _swarm(text: str) -> str:
    from swarm.peers.target import parse_target

    return str(parse_target(text))


def _without_secret(text: str) -> str:
    from swarm.errors import SwarmError
    from swarm.peers.target import parse_target

    try:
        return str(parse_target(text).address)
    except SwarmError:
        return "(damaged)"


def _size(text: str) -> int:
    from swarm.cli.options import SIZE

    return SIZE.convert(text, None, None)


def _one_of(name: str, choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise click.UsageError(f"{name} is one of {', '.join(choices)}; not {text!r}.")
        return text

    return read


def _lending(text: str) -> str:
    return _one_of("lend", LENDING)(text).replace("off", "")
