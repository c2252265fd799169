"""Whether a text follows a structural tag: its tags are found by their texts, their values read strictly."""

from jsonschema import Draft202012Validator

from audit.checks.schema_conformance.strict_json import strict_decoder
from engine.core.structural_tag import TagGrammar


class TagReader:
    """Reads whole texts.

    Args:
        grammar: the structural tag.
        repeated: takes the keys that an object has twice.
    """

    def __init__(self, grammar: TagGrammar, repeated: list[str]) -> None:
        self._grammar = grammar
        self._decoder = strict_decoder(repeated)
        self._validators = [Draft202012Validator(tag.schema) for tag in grammar.tags]

    def problem(self, text: str) -> str | None:
        """Why the text does not follow the grammar; None if it does."""
        at = count = 0
        while (begin := self._next(text, at, count)) is not None:
            if isinstance(begin, str):
                return begin
            ending = self._tag(text, begin)
            if isinstance(ending, str):
                return ending
            at, count = ending, count + 1
        return "it has no tag" if self._grammar.at_least_one and not count else None

    def _next(self, text: str, at: int, count: int) -> int | str | None:
        """Where the next tag begins; None if the text ends without one; a problem in words."""
        grammar = self._grammar
        if grammar.stop_after_first and count:
            return None if at == len(text) else f"it goes on after its first tag, at character {at + 1}"
        if grammar.triggers is None:
            if at == len(text):
                return None
            if not count:
                return at
            between = text.startswith(grammar.separator, at)
            return at + len(grammar.separator) if between else f"no separator at character {at + 1}"
        if grammar.at_least_one and not count:
            return at
        return min((runs for trigger in grammar.triggers if (runs := text.find(trigger, at)) >= 0), default=None)

    def _tag(self, text: str, at: int) -> int | str:
        """Where the tag that begins at `at` ends, or why there is none."""
        problems = [f"no tag begins at character {at + 1}"]
        for tag, validator in zip(self._grammar.tags, self._validators, strict=True):
            if not text.startswith(tag.begin, at):
                continue
            read = self._value(text, at + len(tag.begin), validator)
            if isinstance(read, str):
                problems.append(read)
            elif text.startswith(tag.end, read):
                return read + len(tag.end)
            else:
                problems.append(f"the tag {tag.begin!r} does not end at character {read + 1}")
        return problems[-1]

    def _value(self, text: str, at: int, validator: Draft202012Validator) -> int | str:
        """Where the JSON value ends, or what is wrong with it."""
        if at == len(text) or text[at].isspace():
            return f"no JSON at character {at + 1}"
        try:
            value, end = self._decoder.raw_decode(text, at)
        except ValueError as error:
            return f"the value is no JSON: {error}"
        wrong = next(iter(validator.iter_errors(value)), None)
        return end if wrong is None else f"the schema refuses a value: {wrong.message[:120]}"
