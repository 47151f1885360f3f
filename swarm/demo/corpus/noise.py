"""How people really type: with and without capitals, punctuation, courtesies and typing mistakes."""

from __future__ import annotations

import random
import re

OPENINGS = (
    "please", "please", "hi,", "hello,", "hey,", "so", "ok,", "ok so", "well,", "and", "but", "now",
    "excuse me,", "sorry,", "tell me,", "please tell me,", "a question:", "quick question:",
    "one question:", "another question:", "i wonder,", "swarm,", "hey swarm,", "hi there,", "good morning,",
    "can you tell me,", "could you tell me,", "do you know,", "i want to know,", "i would like to know,",
    "say,", "next question:", "i am new here,", "just curious:", "one more thing:", "by the way,", "hm,", "uh,",
    "sorry to ask, but", "my question is:", "a friend asked me:", "i was wondering:", "pls", "yo,", "btw", "oh and",
    "i have a question:", "not sure if you know, but", "let me ask:", "then", "next:", "also,", "dear swarm,",
    "hello again,", "i am a student and want to know:", "my boss asks:", "i just heard of swarm,",
    "i read the readme, but", "my son asks:", "we talked about it at work:", "i looked at the docs, but",
    "for my homework:", "sorry for the stupid question:", "i am no expert, but", "before i begin,", "help,",
    "it is late, but", "all right,",
)  # fmt: skip
ENDINGS = (
    "please", "please", "thanks", "then", "here", "now", "again", "exactly", "in swarm", "with swarm",
    "really", "for me", "in a swarm", "my friend", "thank you", "at all", "today", "anyway", "and why",
    "if i may ask", "or not", "any idea", "do you know", "i wonder", "just asking", "pls", "thx", "please explain",
    "please tell me", "can you help", "because i am curious", "in your opinion", "by the way", "actually", "or what",
    "when using swarm", "right now", "i am a beginner", "help", "asking for a friend",
)  # fmt: skip
_NEIGHBOURS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo",
    "j": "hk", "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "wa", "r": "et",
    "s": "ad", "t": "ry", "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


_PROPER = {
    "swarm": "Swarm", "cpu": "CPU", "gpu": "GPU", "gpus": "GPUs", "ram": "RAM", "moe": "MoE", "nat": "NAT",
    "api": "API", "mac": "Mac", "macs": "Macs", "macos": "macOS", "linux": "Linux", "windows": "Windows",
    "python": "Python", "qwen": "Qwen", "kimi": "Kimi", "glm": "GLM", "olmoe": "OLMoE", "deepseek": "DeepSeek",
    "mixtral": "Mixtral", "openai": "OpenAI", "gguf": "GGUF", "ai": "AI", "llm": "LLM", "llms": "LLMs", "pc": "PC",
    "cas": "CAS", "fuse": "FUSE", "petals": "Petals", "ollama": "Ollama", "bittorrent": "BitTorrent", "llama": "Llama",
    "english": "English", "german": "German", "french": "French", "spanish": "Spanish", "france": "France",
    "internet": "Internet", "numba": "Numba", "rust": "Rust", "java": "Java", "nvidia": "NVIDIA", "cuda": "CUDA",
    "paris": "Paris", "london": "London", "hugging": "Hugging", "huggingface": "Hugging Face", "q8": "Q8", "q4": "Q4",
}  # fmt: skip
_WORD = re.compile(r"(?<![-/\w])[a-z0-9]+")


def proper(text: str) -> str:
    """`text` with its names and abbreviations as a careful person writes them."""
    return _WORD.sub(lambda word: _PROPER.get(word.group(), word.group()), text)


def typed(phrasing: str, luck: random.Random, courtesies: bool = True, mistakes: bool = True) -> str:
    """`phrasing` (lower case, no final punctuation) as somebody might type it."""
    text = phrasing
    if courtesies and luck.random() < 0.25:
        text = f"{luck.choice(OPENINGS)} {text}"
    if courtesies and luck.random() < 0.12:
        text = f"{text} {luck.choice(ENDINGS)}"
    if mistakes and luck.random() < 0.18:
        text = mistyped(text, luck)
        text = mistyped(text, luck) if luck.random() < 0.2 else text
    if luck.random() < 0.15:
        text = text.replace("'", "")
    style = luck.random()
    if style < 0.5:
        text = proper(text) if luck.random() < 0.75 else text
        text = text[:1].upper() + text[1:]
        if luck.random() < 0.7:
            text = " ".join("I" + word[1:] if word.split("'")[0] == "i" else word for word in text.split(" "))
    elif mistakes and style < 0.53:
        text = text.upper()
    elif style < 0.63:
        text = proper(text)
    return text + luck.choices(("?", "", ".", "!", "??", " ?", "..."), (50, 32, 10, 3, 2, 2, 1))[0]


def mistyped(text: str, luck: random.Random) -> str:
    """`text` with one typing mistake in one of its words of at least four letters, if it has any."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) >= 4 and word.isalpha()]
    if not long:
        return text
    chosen = luck.choice(long)
    word = words[chosen]
    at = luck.randrange(1, len(word) - 1)
    words[chosen] = luck.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + luck.choice(_NEIGHBOURS.get(word[at], "e")) + word[at + 1 :],
        )
    )
    return " ".join(words)
