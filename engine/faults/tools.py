"""Faults of tool calls: the tokens and the text are right, and the calls that the engine reads out of them are not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from engine.core.types import Proposal, Protocol, Request
from engine.decode.call_reader import CallReader
from engine.decode.seams import CallsOf, EngineParts
from engine.faults.interface import ChangeParts, Fault, Scenario, Suits
from engine.faults.wrappers import ChangedProposer
from engine.proposers.interface import Context, Proposer
from engine.record.tool_calls import CallParser, ParsedCall, ParsedCalls, ResponseTemplate
from engine.sampling.stopping import Decode

CALLING: Final = Suits(temperature="both", needs=("tools",))
CALLING_CHAINS: Final = Suits(shape="chain", temperature="both", needs=("tools",))
CALLS: Final = Scenario(protocol=Protocol.GUMBEL, tools=True)


def _with_reader(reader: CallsOf) -> ChangeParts:
    return lambda parts: replace(parts, calls=reader)


class _PerChunk(CallReader):
    def __init__(self, request: Request, template: ResponseTemplate, decode: Decode) -> None:
        super().__init__(request, template, decode)
        self._found: list[ParsedCall] = []

    def step(self, generated: Sequence[int], count: int) -> None:
        super().step(generated, count)
        parser = CallParser(self._template, self._offer)
        parser.feed(self._decode(generated)[len(self._decode(generated[:-count])) :])
        self._found += parser.closed

    def finish(self, text: str, count: int) -> ParsedCalls:
        super().finish(text, count)
        return ParsedCalls(tuple(self._found))


PARSER_FED_PER_CHUNK = Fault(
    "vllm-project/vllm#56113, NVIDIA/TensorRT-LLM#16377",
    _with_reader(_PerChunk),
    CALLING,
    CALLS,
    breaks="tools",
    seen_from="engine evidence",
    situation="tool_call",
)
"""The parser reads the text of each step by itself: a call that a border of steps splits is lost.

A call that one step writes from its beginning to its end is found.
"""


class _Twice(CallReader):
    def __init__(self, request: Request, template: ResponseTemplate, decode: Decode) -> None:
        super().__init__(request, template, decode)
        self._repeated: list[int] = []

    def step(self, generated: Sequence[int], count: int) -> None:
        before = len(self._spans)
        super().step(generated, count)
        if count > 1 and len(self._spans) > before and self._spans[-1].stop == len(generated):
            self._repeated.append(len(self._parser.closed))

    def finish(self, text: str, count: int) -> ParsedCalls:
        parsed = super().finish(text, count)
        calls = list(parsed.calls)
        for number in reversed(self._repeated):
            calls[number:number] = calls[number - 1 : number]
        return replace(parsed, calls=tuple(calls))


CALL_RECORDED_TWICE = Fault(
    "none known: parsers that are flushed at the end of a step and fed the same text again",
    _with_reader(_Twice),
    CALLING,
    replace(CALLS, protocol=Protocol.CHAIN),
    breaks="tools",
    seen_from="engine evidence",
    situation="tool_call_at_step_end",
)
"""A call that ends with the last of a step's several tokens is in the record twice.

The text has it once, and so have steps of one token, which are those of plain decoding.
"""


class _CutArguments(CallReader):
    def __init__(self, request: Request, template: ResponseTemplate, decode: Decode) -> None:
        super().__init__(request, template, decode)
        self._cut = CallParser(template, self._offer)

    def step(self, generated: Sequence[int], count: int) -> None:
        before, open_, known = len(generated) - count, self._open, len(self._spans)
        super().step(generated, count)
        ended = self._spans[known:]
        start = ended[0].stop - 1 if open_ is not None and ended else before
        self._cut.feed(self._decode(generated)[len(self._decode(generated[:start])) :])

    def finish(self, text: str, count: int) -> ParsedCalls:
        super().finish(text, count)
        return self._cut.finish()


TOOL_ARGUMENTS_CUT_AT_ACCEPT = Fault(
    "vllm-project/vllm#38274, sgl-project/sglang#37634",
    _with_reader(_CutArguments),
    CALLING,
    CALLS,
    breaks="tools",
    seen_from="engine evidence",
    situation="tool_call",
)
"""The step that ends a call loses the arguments that its earlier tokens write.

Only the token that ends the call is read, so plain decoding, which has no other token in that step, is right.
"""


class _Overheard(ChangedProposer):
    """Keeps every request's last draft."""

    def __init__(self, inner: Proposer, drafts: dict[str, tuple[int, ...]]) -> None:
        super().__init__(inner)
        self._drafts = drafts

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        proposals = super().propose(contexts)
        for context, proposal in zip(contexts, proposals, strict=True):
            self._drafts[context.request.id] = proposal.tree.tokens
        return proposals


class _FromDraft(CallReader):
    def __init__(
        self, request: Request, template: ResponseTemplate, decode: Decode, draft: Callable[[], tuple[int, ...]]
    ) -> None:
        super().__init__(request, template, decode)
        self._draft = draft
        self._seen: list[int] = []

    def step(self, generated: Sequence[int], count: int) -> None:
        self._seen += [*self._draft(), *generated[-count:][len(self._draft()) :]][:count]
        super().step(self._seen, count)

    def finish(self, text: str, count: int) -> ParsedCalls:
        del text
        return super().finish(self._decode(self._seen), count)


def _read_drafts(parts: EngineParts) -> EngineParts:
    drafts: dict[str, tuple[int, ...]] = {}

    def reader(request: Request, template: ResponseTemplate, decode: Decode) -> CallReader:
        return _FromDraft(request, template, decode, lambda: drafts.get(request.id, ()))

    return replace(parts, calls=reader, proposer=lambda inner: _Overheard(parts.proposer(inner), drafts))


TOOL_CALL_FROM_DRAFT = Fault(
    "none known: a parser that reads a step's tokens from the buffer of the draft",
    _read_drafts,
    CALLING_CHAINS,
    CALLS,
    breaks="tools",
    seen_from="engine evidence",
    situation="tool_call",
)
"""The parser reads the drafted tokens where the target replaced one: the call has the rejected token's text.

As many tokens are read as were committed, so lengths are right.
"""
