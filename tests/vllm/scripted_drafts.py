"""A proposer for vLLM that reads its drafts from a file, to exercise verification without a draft model.

vLLM loads it through `custom_class`, its public option for custom proposers. The file is JSON: `end`, the end token,
and `continuations`, a list of `prompt` and `tokens` (both token ids, `tokens` being the target's own continuation) and
`way`, how drafts of that text differ from it. Drafts are a function of the tokens so far. A text that is not in the
file gets no draft.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class DraftPosition:
    """The inputs of a draft: the next tokens, the place among the new tokens, and the file's entry."""

    next: tuple[int, ...]
    index: int
    vocabulary: int
    end: int


def right(place: DraftPosition) -> list[int]:
    """The target's own tokens."""
    return list(place.next)


def wrong(place: DraftPosition) -> list[int]:
    """Always wrong."""
    return [(token + 1) % place.vocabulary for token in place.next]


def half(place: DraftPosition) -> list[int]:
    """Right in the first half, wrong after it."""
    kept = len(place.next) // 2
    return [*place.next[:kept], *wrong(place)[kept:]]


def end_inside(place: DraftPosition) -> list[int]:
    """Right, but with an end token in the second place, where the target has none."""
    return [*place.next[:1], place.end, *place.next[2:]] if len(place.next) > 1 else right(place)


def empty(place: DraftPosition) -> list[int]:
    """Nothing."""
    del place
    return []


def varying(place: DraftPosition) -> list[int]:
    """Right, with a length that varies by place and may be 0."""
    return list(place.next[: place.index % (len(place.next) + 1)])


def outside(place: DraftPosition) -> list[int]:
    """Tokens that do not exist."""
    return [place.vocabulary + token for token in place.next]


WAYS: Final[Mapping[str, Callable[[DraftPosition], list[int]]]] = {
    item.__name__: item for item in (right, wrong, half, end_inside, empty, varying, outside)
}


@dataclass(frozen=True, slots=True)
class ScriptedText:
    """One text, and how its drafts are made."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    way: Callable[[DraftPosition], list[int]]


@dataclass(frozen=True, slots=True)
class DraftScript:
    """The file, read."""

    texts: tuple[ScriptedText, ...]
    end: int
    vocabulary: int
    gamma: int

    def draft(self, history: Sequence[int]) -> list[int]:
        """At most gamma tokens after `history`; none if the file lacks the history's text."""
        for text in self.texts:
            new = tuple(history[len(text.prompt) :])
            if tuple(history[: len(text.prompt)]) == text.prompt and text.tokens[: len(new)] == new:
                following = text.tokens[len(new) : len(new) + self.gamma]
                return text.way(DraftPosition(following, len(new), self.vocabulary, self.end))
        return []


def read_script(path: Path, vocabulary: int, gamma: int) -> DraftScript:
    """The script in a file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    texts = (
        ScriptedText(tuple(item["prompt"]), tuple(item["tokens"]), WAYS[item["way"]])
        for item in document["continuations"]
    )
    return DraftScript(tuple(texts), document["end"], vocabulary, gamma)


class ScriptedProposer:
    """The class that vLLM calls; see its custom proposers."""

    def __init__(self, vllm_config: Any) -> None:
        path = vllm_config.additional_config["specaudit"]["script"]
        draft, model = vllm_config.speculative_config, vllm_config.model_config
        self._script = read_script(Path(path), model.get_vocab_size(), draft.num_speculative_tokens)
        self._room: int = model.max_model_len

    def load_model(self, *args: Any, **named: Any) -> None:
        """Loads nothing; vLLM calls this on CPUs unconditionally."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts by request; none for a request whose prompt is not fully read."""
        del slot_mappings
        drafts = []
        for row, (sampled, count) in enumerate(zip(sampled_token_ids, num_tokens_no_spec, strict=False)):
            room = self._room - int(count) - 1
            history = [int(token) for token in token_ids_cpu[row, : int(count)]]
            drafts.append(self._script.draft(history)[: max(0, room)] if len(sampled) else [])
        return drafts
