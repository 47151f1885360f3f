"""POST /v1/completions: OpenAI's text completions, whole or as a stream of chunks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from swarm.api.answers import Chunks, Document, answer, head, usage
from swarm.api.http import Client, EventStream
from swarm.api.replies import Anew, Finished, Replies, Told
from swarm.api.service import Service
from swarm.api.transcript import Chance, Places, text_chances
from swarm.api.wishes import TextWish


async def answer_text(service: Service, wish: TextWish, client: Client) -> None:
    """Continues texts; see `answer`."""
    making = service.text(wish)
    await answer(client, wish.common, making, partial(_whole, wish), partial(_stream, wish))


def _echoes(replies: Replies, wish: TextWish) -> list[str]:
    """What each choice repeats of its prompt."""
    return [prompt if wish.echo else "" for prompt in replies.prompts for _ in range(wish.common.choices)]


async def _whole(wish: TextWish, replies: Replies) -> Document:
    echoes = _echoes(replies, wish)
    texts = list(echoes)
    chances: list[list[Chance]] = [[] for _ in echoes]
    tokens: list[list[int]] = [[] for _ in echoes]
    finishes: list[str | None] = [_first_finish(wish) for _ in echoes]
    async for event in replies:
        match event:
            case Told(number, delta):
                texts[number] += delta.text
                chances[number] += delta.chances
                tokens[number] += delta.tokens
            case Anew(number):
                texts[number], chances[number], tokens[number] = echoes[number], [], []
            case Finished(number, finish):
                finishes[number] = finish
    return {
        **head(replies, "cmpl", "text_completion"),
        "choices": [
            _choice(
                number,
                text,
                finishes[number],
                _joined(
                    _prompt_logprobs(replies, wish, number),
                    _logprobs(replies, wish, chances[number], place),
                ),
                _token_ids(replies, tokens[number]),
            )
            for number, (text, place) in enumerate(zip(texts, _places(replies, echoes), strict=True))
        ],
        "usage": usage(replies),
    }


async def _stream(wish: TextWish, replies: Replies, stream: EventStream) -> list[Document]:
    """Sends all but the last events, which it gives."""
    chunks = Chunks(replies, wish.common, "cmpl", "text_completion")
    echoes = _echoes(replies, wish)
    places = _places(replies, echoes)
    no_ids, finish_now = _token_ids(replies, ()), _first_finish(wish)
    if wish.echo:
        await stream.send(
            *(
                chunks.of(_choice(number, echo, finish_now, _prompt_logprobs(replies, wish, number), no_ids))
                for number, echo in enumerate(echoes)
            )
        )
    async for event in replies:
        match event:
            case Told(number, delta):
                logprobs = _logprobs(replies, wish, delta.chances, places[number])
                ids = _token_ids(replies, delta.tokens)
                await stream.send(chunks.of(_choice(number, delta.text, None, logprobs, ids)))
            case Finished(number, finish):
                await stream.send(chunks.of(_choice(number, "", finish, None, no_ids)))
    return chunks.last()


def _choice(
    number: int, text: str, finish: str | None = None, logprobs: Any = None, ids: Document | None = None
) -> Document:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish, **(ids or {})}


def _token_ids(replies: Replies, tokens: Sequence[int]) -> Document:
    """The reply itself where it does not read as text, in the field that vLLM has for it."""
    return {} if replies.engine.has_tokenizer else {"token_ids": list(tokens)}


def _places(replies: Replies, echoes: Sequence[str]) -> list[Places]:
    return [Places(replies.engine, len(echo)) for echo in echoes]


def _logprobs(replies: Replies, wish: TextWish, chances: Sequence[Chance], places: Places) -> Document | None:
    return None if wish.common.logprobs is None else text_chances(replies.engine, chances, places)


def _first_finish(wish: TextWish) -> str | None:
    """Why a choice ends before it begins; None if it does not."""
    return "length" if wish.common.max_tokens == 0 else None


def _prompt_logprobs(replies: Replies, wish: TextWish, number: int) -> Document | None:
    """Probabilities of the prompt that choice `number` repeats, if they are wanted."""
    if not replies.scored:
        return None
    prompt = number // wish.common.choices
    places = Places(replies.engine, 0, replies.prompts[prompt])
    return text_chances(replies.engine, replies.scored[prompt], places)


def _joined(first: Document | None, second: Document | None) -> Document | None:
    """Probabilities of a text's beginning and of the rest of it."""
    if first is None or second is None:
        return first or second
    return {key: [*first[key], *second[key]] for key in first}
