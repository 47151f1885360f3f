"""`swarm api`: the models of a swarm, or of directories here, for programs that speak OpenAI's API; and a page."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.asking import NO_TOKEN_NEEDED, asking_options, drafts_option
from swarm.cli.options import (
    DIRECTORY,
    HOST,
    SIZE,
    Whole,
    parse_target,
    swarm_options,
    threads_option,
    weights_options,
)
from swarm.cli.secrets import secret_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from swarm.api.server import Settings
    from swarm.api.shelf import Library

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("api", short_help="Answer programs that speak OpenAI's API, and serve a page.")
@swarm_options
@click.option(
    "--local",
    type=DIRECTORY,
    multiple=True,
    metavar="DIR",
    help="A model directory or GGUF file here, needs no network; may be given several times.",
)
@click.option("--offline", is_flag=True, help="Use what was fetched before, and no network.")
@click.option(
    "--host",
    type=HOST,
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; 0.0.0.0 is everywhere.",
)
@click.option("--port", type=Whole(0, 65535), default=8000, show_default=True, help="0: any free one.")
@secret_option(
    "api-key", "Key that every request must show (or SWARM_API_KEY).", metavar="KEY", envvar="SWARM_API_KEY"
)
@click.option("--slots", type=Whole(1, 256), default=8, show_default=True, help="Replies made at once.")
@click.option(
    "--queue",
    type=Whole(min=0),
    default=128,
    show_default=True,
    help="Replies that may wait beyond.",
)
@click.option(
    "--memory", type=SIZE, metavar="SIZE", help="Memory for models; by default a part of what is free."
)
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="A site whose pages may use this server; * for all."
)
@click.option("--tls-cert", type=FILE, metavar="FILE", help="Certificate chain, PEM.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="Its key, PEM.")
@weights_options
@threads_option
@asking_options
@drafts_option
@click.option("--json", "as_json", is_flag=True, help="Print events, one JSON object a line.")
def command(
    invite: str | None,
    tracker: str | None,
    token: str | None,
    local: tuple[Path, ...],
    offline: bool,
    host: str,
    port: int,
    api_key: str | None,
    slots: int,
    queue: int,
    memory: int | None,
    cors: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    weights: str,
    expert_ram: int | None,
    hedge: str,
    audit: float,
    trace: Path | None,
    drafts: bool,
    as_json: bool,
) -> None:
    """Answer programs that speak OpenAI's API with the models of a swarm, or of directories here.

    Point a client's base URL at http://HOST:PORT/v1. A page to chat is at http://HOST:PORT/. Models are loaded when
    they are first asked for.
    """
    from contextlib import closing

    from engine.memory import available_bytes
    from swarm.api.app import Rules
    from swarm.api.joined import Asking, JoinedSwarm
    from swarm.api.libraries import Directories
    from swarm.api.server import Settings
    from swarm.cli.joining import joined
    from swarm.peers.remote import Rules as AskingRules
    from swarm.wire.address import Address

    target = parse_target(invite, tracker)
    if target and local:
        raise click.UsageError("Give a swarm or --local DIR, not both.")
    if token is not None and local:
        raise click.UsageError(NO_TOKEN_NEEDED)
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together; give both.")
    if trace is not None:
        raise click.UsageError("--trace writes what one conversation asks; use it with `swarm chat`.")
    if api_key is not None and (not api_key.isascii() or len(api_key) < 8):
        raise click.UsageError("The API key must be at least 8 ASCII characters.")
    here = Address(host, port).is_loopback
    if not here and api_key is None:
        raise click.UsageError(
            f"{host} can be reached by others; protect it with --api-key-file FILE or SWARM_API_KEY."
        )
    settings = Settings(
        host=host,
        port=port,
        slots=slots,
        most_waiting=queue,
        memory_bytes=available_bytes() * 7 // 10 if memory is None else memory,
        certificate=tls_cert,
        certificate_key=tls_key,
        rules=Rules(api_key, local_only=here, origins=cors),
    )
    if local:
        with closing(Directories(local, weights, expert_ram)) as library:  # type: ignore[arg-type]
            _serve(library, settings, as_json)
        return
    with joined(target, token, offline=offline) as (network, session):
        rules = AskingRules.parse(hedge, audit, fetch=True, draft=drafts)
        asking = Asking(rules, weights, expert_ram, not offline)  # type: ignore[arg-type]
        swarm = JoinedSwarm(network, session, asking)
        _serve(swarm, settings, as_json, swarm.renewed)


def _serve(
    library: "Library",
    settings: "Settings",
    as_json: bool,
    renewed: "Callable[[], tuple[str, ...]] | None" = None,
) -> None:
    """`renewed`: what to tell, now and then, of models with a later version; None: there are no versions."""
    import trio

    from swarm.api.server import listen, serving
    from swarm.cli.hosting import until_signalled
    from swarm.cli.output import emit_json, say
    from swarm.errors import SwarmError
    from swarm.peers.versions import LOOK_S

    async def watch(renewed: "Callable[[], tuple[str, ...]]") -> None:
        while True:
            await trio.sleep(LOOK_S)
            try:
                told = await trio.to_thread.run_sync(renewed)
            except (SwarmError, OSError):  # the swarm is away; it is asked again
                continue
            for text in told:
                say(text)
                if as_json:
                    emit_json({"event": "renewed", "text": text})

    async def main() -> None:
        listener = listen(settings.host, settings.port)
        port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"{'https' if settings.certificate else 'http'}://{host}:{port}"
        names = [model.name for model in await trio.to_thread.run_sync(library.models)]
        async with until_signalled() as ended, serving(library, settings, listener) as run:
            if as_json:
                emit_json({"event": "answering", "url": url, "models": names})
            else:
                say(f"{', '.join(names) or 'No model yet'} at {url}/v1; a page at {url}/. Ctrl-C ends it.")
            async with trio.open_nursery() as nursery:
                if renewed is not None:
                    nursery.start_soon(watch, renewed)
                await run(ended.wait)
                nursery.cancel_scope.cancel()

    trio.run(main)
