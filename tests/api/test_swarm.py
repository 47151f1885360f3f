"""Over a swarm: a real server of a model, a real server of the API that joined it, experts run by donors."""

from pathlib import Path

import httpx2

from engine.chat import ChatSettings, Conversation, Finished
from tests.api.stage import api_process, ask, says
from tests.e2e.processes import serving
from tests.engine.reference import opened


def test_answers_over_a_swarm_are_those_of_chat(tmp_path: Path, oracle: Path) -> None:
    conversation = Conversation(opened(oracle / "olmoe", "auto"))
    events = list(conversation.say("Hello", ChatSettings(max_tokens=20)))
    assert isinstance(events[-1], Finished)
    with (
        serving(tmp_path / "server", oracle / "olmoe") as served,
        api_process(tmp_path / "api", served.invite, "--audit", "50%") as url,
    ):
        listed = httpx2.get(url + "/v1/models").json()["data"]
        assert [(model["id"], model["loaded"]) for model in listed] == [(served.model, False)]
        made = ask(url, says("Hello", max_tokens=20)).json()
        assert made["choices"][0]["message"]["content"] == events[-1].text
        state = httpx2.get(url + "/v1/swarm").json()
        assert state["link"] == "online"
        assert state["remote_calls"] > 0
        assert {peer["role"] for peer in state["peers"]} == {"bytes", "experts"}
        assert all(count == 1 for layer in state["experts"] for count in layer)
        missing = ask(url, says("Hello", model="other"))
        assert missing.status_code == 404
