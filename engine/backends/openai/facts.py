"""The stored facts of an endpoint, of an arm at it, and of one answer.

The facts hold the server's words and numbers and their contradictions. They contain no key and no address with a
password.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.openai.documents import BRIEF, brief
from engine.backends.openai.forms.draft_counts import BY_LENGTH
from engine.backends.openai.response import Completion
from engine.backends.openai.retry import RequestResult
from engine.backends.openai.settings import SEEDED, OpenAISettings, level_of
from engine.backends.openai.surface import surface_facts
from engine.backends.openai.tokens import AnswerTokens, TokenOrigin
from engine.backends.openai.tool_calls import parsed
from engine.core.sequences import agreeing
from engine.core.types import Protocol, SamplingParams
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.requests import KEY

NONE: Final = "none"
"""The word for requests without seeds."""
LISTED: Final = ("id", "root", "parent", "owned_by", "max_model_len")


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """An endpoint's facts about itself before anything is generated.

    listed: its entry of the model.
    context: most tokens of prompt and answer, None if not reported.
    speculates: None if not reported.
    counters: it has counters of speculation.
    effective: its own account of its settings.
    """

    model: str
    listed: Mapping[str, Any]
    version: str | None = None
    context: int | None = None
    speculates: bool | None = None
    counters: bool = False
    effective: Mapping[str, Any] = field(default_factory=dict)


def arm_facts(
    settings: OpenAISettings, served: EndpointFacts, plan: EngineSpec, protocol: Protocol, origin: TokenOrigin
) -> Effective:
    """The effective configuration of an arm."""
    requested: dict[str, Any] = {"model": settings.model or served.model}
    in_effect: dict[str, Any] = {"model": served.listed.get("id", served.model), **served.effective}
    # a plain arm's server has none of the settings of drafts
    requested |= {} if plan.proposer is None else settings.expects
    # a server that is switched by each request says nothing about an arm: see `switched`
    if not settings.baseline_body:
        requested["speculation"] = plan.proposer is not None
        in_effect |= {} if served.speculates is None else {"speculation": served.speculates}
    document = {
        "backend": "openai",
        "url": settings.url,
        "server": settings.server,
        "version": served.version,
        "listed": {key: served.listed[key] for key in LISTED if key in served.listed},
        "api": settings.api.value,
        "stream": settings.stream.value,
        "logprobs": settings.logprobs,
        "tokens": TokenOrigin.SERVER.value if settings.dialect.token_ids else origin.value,
        "response_format": settings.response_format,
        "tool_choice": settings.tool_choice,
        "parallel_tool_calls": settings.parallel_tool_calls,
        "body": dict(settings.body),
        "baseline_body": dict(settings.baseline_body),
        "answers_as": settings.answers_as,
        "proposer": plan.proposer or "plain",
        "protocol": protocol.value,
        "lossless": True,
        "fault": plan.fault,
        "gamma": None,
        "rows": plan.rows,
        "record": "tokens",
        "seeds": f"digest of seed and stream, {settings.dialect.seed_bits} bits" if settings.seeds == SEEDED else NONE,
        "server_counters": served.counters,
        "requested": requested,
        "effective": in_effect,
        "evidence": {"level": level_of(settings), "problems": []},
    }
    return stated(LoopOwner.FOREIGN, document)


def switched(speculates: bool, told: int, counted: Mapping[str, Any], sent: int) -> dict[str, Any]:
    """Whether the arm drafted, as an account of its last request, on a server that each request switches.

    `told` are drafted tokens by the answers' own accounts, `counted` is the growth of the server's counters over the
    arm of `sent` requests. Growth shows drafts of a plain arm only where nobody else used the server.
    """
    grown = max(told, int(counted.get("drafted", 0)))
    alone = speculates or told > 0 or counted.get("finished") == sent
    known = (alone if grown else "drafted" in counted) and not counted.get("restarted")
    return {KEY: {"requested": {"speculation": speculates}, "effective": {"speculation": grown > 0} if known else {}}}


def request_facts(
    settings: OpenAISettings,
    sampling: SamplingParams,
    asked: RequestResult,
    answer: Completion,
    read: AnswerTokens,
    prompt: Sequence[int] | None,
) -> dict[str, Any]:
    """The facts of one answered request; `prompt` holds the tokens of our template, None if the server received ids."""
    facts: dict[str, Any] = {
        "tokens": read.origin.value,
        "finish": answer.finish[:BRIEF],
        "answer": dict(answer.meta),
        "usage": {key[:BRIEF]: brief(value) for key, value in answer.usage.items() if isinstance(value, int)},
        "attempts": asked.attempts,
        "reconciliation": reconciled(asked, answer, read, prompt),
        **surface_facts(answer, asked.streamed, sampling, settings.logprobs),
    }
    if settings.logprobs and not read.logprob:
        facts |= {"level": 0, "why": read.less}
    if asked.lost:
        facts["lost"] = list(asked.lost)
    if asked.first_us is not None:
        facts["first_us"] = asked.first_us
    if asked.streamed is not None:
        facts["streamed_answer"] = dict(asked.streamed.meta)
    if answer.speculation is not None:
        facts["speculation"] = dict(answer.speculation)
    if answer.tool_calls:
        facts["tool_calls"] = [{"name": call.name, **parsed(call.arguments)} for call in answer.tool_calls]
    if settings.response_format is not None and settings.response_format.get("type") in ("json_schema", "json_object"):
        facts["json"] = parsed(answer.content)
    return facts


def reconciled(
    asked: RequestResult, answer: Completion, read: AnswerTokens, prompt: Sequence[int] | None
) -> dict[str, Any]:
    """The server's accounts of one answer, and where they contradict each other."""
    counts = list(_counts(answer, read))
    sources = ["answer"]
    if "completion_tokens" in answer.usage:
        sources.append("usage")
    if answer.pieces is not None:
        sources.append("log-probabilities")
    if answer.speculation is not None:
        sources.append("speculation")
    if asked.streamed is not None:
        sources.append("streamed answer")
        counts += _both(answer, asked.streamed)
    if prompt is not None and answer.prompt_ids is not None:
        sources.append("prompt")
        counts += _prompt(prompt, answer.prompt_ids)
    if answer.finish in ("tool_calls", "function_call") and not answer.tool_calls:
        counts.append(f"it ended with {answer.finish} and holds no call")
    return {"sources": sources, "mismatches": counts}


def _counts(answer: Completion, read: AnswerTokens) -> list[str]:
    """Numbers of tokens, where the server names the tokens."""
    if read.origin is not TokenOrigin.SERVER:
        return []
    result, count = [], len(read.tokens)
    usage = answer.usage.get("completion_tokens")
    if isinstance(usage, int) and usage != count:
        result.append(f"{count} tokens, the usage counts {usage}")
    if answer.pieces is not None and len(answer.pieces) != count:
        result.append(f"{count} tokens, {len(answer.pieces)} log-probabilities")
    return result + _drafts(answer.speculation, count)


def _drafts(told: Mapping[str, Any] | None, count: int) -> list[str]:
    """Accepted tokens are among the emitted ones, and no step accepts more than it drafts."""
    if told is None:
        return []
    drafted, accepted = told.get("drafted"), told.get("accepted")
    result = []
    if isinstance(drafted, int) and isinstance(accepted, int) and accepted > drafted:
        result.append(f"{accepted} drafted tokens were accepted of {drafted}")
    steps = list(zip(told.get("per_step_accepted", ()), told.get("per_step_drafted", ()), strict=False))
    result += [f"step {at}: {kept} accepted of {made}" for at, (kept, made) in enumerate(steps) if kept > made]
    lengths = told.get(BY_LENGTH, ())
    if lengths and isinstance(accepted, int) and accepted != sum(kept * number for kept, number in enumerate(lengths)):
        result.append(f"{accepted} drafted tokens were accepted, by the lengths of its steps others")
    if isinstance(told.get("steps"), int) and told["steps"] > count + 1:
        result.append(f"{count} tokens, {told['steps']} steps")
    # the last step may be cut by the end of the answer
    if steps and sum(kept + 1 for kept, _ in steps[:-1]) > count:
        result.append(f"{count} tokens, the steps before the last emitted more")
    return result


def _both(whole: Completion, parts: Completion) -> list[str]:
    """The differences between the streamed answer and the whole one; calls are compared as texts."""
    # a call cut by the length limit is text to a parser of whole answers and half a call to a parser of parts
    cut = whole.finish == "length" and bool(whole.tool_calls) != bool(parts.tool_calls)
    same = cut or whole.text == parts.text
    result = [] if same else [f"the streamed text differs: {_where(whole.text, parts.text)}"]
    if None not in (whole.token_ids, parts.token_ids) and whole.token_ids != parts.token_ids:
        result.append("the streamed token ids differ")
    if whole.finish != parts.finish:
        result.append(f"it ended with {whole.finish}, streamed with {parts.finish}")
    ours, theirs = ([piece.logprob for piece in every.pieces or ()] for every in (whole, parts))
    if len(ours) != len(theirs):
        result.append(f"{len(ours)} log-probabilities, streamed {len(theirs)}")
    return result


def _where(left: str, right: str) -> str:
    at = agreeing(left, right)
    return f"at character {at} {left[at : at + 20]!r} against {right[at : at + 20]!r}"


def _prompt(ours: Sequence[int], theirs: Sequence[int]) -> list[str]:
    if tuple(ours) == tuple(theirs):
        return []
    counts = f"the server read a prompt of {len(theirs)} tokens, ours has {len(ours)}"
    return [f"{counts}; the first difference is at {agreeing(ours, theirs)}"]
