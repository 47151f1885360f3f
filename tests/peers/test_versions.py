"""Hearing of later versions of a model that is open."""

from pathlib import Path

import pytest
import trio

from swarm.demo.generated import write_checkpoint
from swarm.peers.models import ModelInfo
from swarm.peers.session import join
from swarm.peers.settings import Home
from swarm.peers.target import parse_target
from swarm.peers.versions import watch
from tests.e2e.hosts import Plan, hosted, lasting_port


async def test_a_later_version_is_told_once_by_a_swarm_that_was_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.peers.versions.LOOK_S", 0.05)
    write_checkpoint(tmp_path / "model")
    plan = Plan(tmp_path / "model", tmp_path / "host", port=lasting_port())
    told: list[ModelInfo] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with hosted(plan) as host:
                session = await nursery.start(
                    _watching, host.invite, Home(tmp_path / "d", tmp_path / "c"), told
                )
                await trio.sleep(0.3)
            while session.online:  # noqa: ASYNC110 - there is no event to wait for
                await trio.sleep(0.05)
            assert not told
            (plan.model / "more").write_text("more")
            async with hosted(plan):
                while not told:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.05)
                await trio.sleep(0.3)
            assert [info.version for info in told] == [2]
            nursery.cancel_scope.cancel()


async def _watching(
    invite: str, home: Home, told: list[ModelInfo], task_status: trio.TaskStatus[object]
) -> None:
    async with join(parse_target(invite), home) as session:
        task_status.started(session)
        await watch(session, await session.open_model(), told.append)
