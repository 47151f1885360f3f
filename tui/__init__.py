"""The terminal: a chat that someone keeps open all day, and the same commands line by line off a terminal.

    options     what the user asked for: where, which model, sampling, limits
    messages    everything that can happen while connecting, loading and answering, as frozen dataclasses
    views       what `/swarm`, `/model` and `/stats` show, as frozen dataclasses
    backend     the protocol between this package and whatever answers
    controller  what each command does; view: what it asks of an interface
    commands    slash commands: parsing and completion, pure
    cleaner     untrusted text to text that cannot command a terminal, pure and incremental
    places      the real backend: a local directory or a swarm, and the opened model that answers
    bridge      the one place where Textual's loop, trio's thread and the compute thread meet
    app         the Textual application; `run(options: Options) -> int` (exit code) opens it
    lines       the same conversation without a terminal; `run(options: Options) -> int` opens it

Only `app`, `screens` and `widgets` import Textual; nothing imports the engine before the first paint.
"""
