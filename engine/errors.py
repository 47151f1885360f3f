"""What can go wrong in the engine. Every message is complete: it names the culprit and the remedy."""


class EngineError(Exception):
    """Base of everything the engine refuses or cannot do; safe to show to a user as it is."""


class CheckpointError(EngineError):
    """The files of a model are missing, cut short, hostile or not what the configuration says."""


class ConfigError(EngineError):
    """The configuration asks for something that this engine does not know, or contradicts itself."""


class UnknownFamily(ConfigError):
    """The configuration names a model type for which there is no family file."""


class TokenizerError(EngineError):
    """The tokenizer is missing or unreadable, or text cannot be turned into tokens."""


class TemplateError(EngineError):
    """The chat template is missing, broken, too slow, too long, or refuses the conversation."""


class SettingsError(EngineError):
    """A sampling or generation setting is out of its range."""


class ContextFull(EngineError):
    """The sequence would outgrow the model's context or the memory set aside for it."""


class CannotRewind(EngineError):
    """A state cannot be cut back to the position asked for; `floor` tells the nearest one below."""


class ExpertsUnavailable(EngineError):
    """The experts a token needs can be had from nowhere; the message says what was tried."""


class ReplyFailed(EngineError):
    """One reply cannot go on. Of several made together it has left them; the others are not concerned.

    `reply`: which one, where they are made together (`engine.batch.Reply`).
    """

    def __init__(self, message: str, reply: object = None) -> None:
        super().__init__(message)
        self.reply = reply


class FalsifiedTooOften(ReplyFailed):
    """What a reply rests on was found wrong again and again; the message names who was at fault last."""


class NotComputed(ReplyFailed):
    """The model computed NaN or infinity where numbers were to be."""


class Closed(EngineError):
    """The model was closed while something was still computed with it, such as a check in the background."""


class Cancelled(EngineError):
    """Raised inside a computation that its caller asked to stop; states are as before the call."""
