"""GGUF files as checkpoints: `header` takes them apart, `architectures` and `tokenizer` translate, `source` shows them
as the files that the rest of the engine reads. The number formats themselves are in `engine.formats.gguf`.
"""

from engine.gguf.source import GGUFSource, presented

__all__ = ["GGUFSource", "presented"]
