"""Counts situations by plain loops over the steps of every request, to check the recognisers on arrays.

Shares nothing with `audit.evidence.coverage` but the names: definitions are those of docs/situations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.types import FinishReason, Role
from engine.record.trace import Trace, steps_of
from tests.engine.build import spell


@dataclass
class Step:
    """One step of one request in plain lists."""

    index: int
    tokens: list[int]
    roles: list[int]
    position: int
    first: int
    parents: list[int]
    kept: list[int]
    excluded: bool
    residual: float | None

    @property
    def accepted(self) -> int:
        return self.roles.count(Role.ACCEPTED)

    @property
    def depth(self) -> int:
        depths = {-1: 0}
        for node, parent in enumerate(self.parents):
            depths[node] = depths[parent] + 1
        return max(depths.values())


def steps(trace: Trace) -> list[Step]:
    listed = []
    for view in steps_of(trace):
        examined = range(view.examined.start, view.examined.stop)
        listed.append(
            Step(
                index=view.index,
                tokens=trace.token[view.emitted].tolist(),
                roles=trace.role[view.emitted].tolist(),
                position=view.position,
                first=view.emitted.start,
                parents=trace.node_parent[view.nodes].tolist(),
                kept=[int(trace.examined_node[i]) for i in examined if trace.examined_accepted[i]],
                excluded=any(trace.examined_p[i] == 0.0 for i in examined),
                residual=float(trace.residual_mass[view.index]) if len(trace.residual_mass) else None,
            )
        )
    return listed


def situations(trace: Trace, gamma: int, *, tree: bool) -> Iterator[str]:
    """Every occurrence in one request, without those that depend on other requests."""
    header, every = trace.header, steps(trace)
    for before, step in zip([None, *every], every, strict=False):
        yield from _drafting(step, header.sampling, tree=tree)
        if before is not None:
            yield from _after(before)
        yield from _limits(step, header.sampling, gamma)
        yield from _tokens(trace, step)
    yield from _end(trace, every)
    yield "first_token"
    if len(header.prompt) >= 128:
        yield "long_prompt"
    if header.finish_reason is FinishReason.LENGTH and header.facts.get("stream", {}).get("held"):
        yield "filter_at_length"
    decisions = header.facts.get("stream", {}).get("decisions", ())
    yield from ["filter"] * len({each["token"] for each in decisions if each["token"] >= 0})


def _drafting(step, sampling, *, tree):
    if not step.parents:
        yield "nothing_drafted"
    for role, name in ((Role.RECOVERED, "recovered_token"), (Role.BONUS, "bonus_token"), (Role.PLAIN, "plain_token")):
        yield from [name] * step.roles.count(role)
    if Role.BONUS in step.roles:
        yield "kept_whole"
    if Role.RECOVERED in step.roles:
        if step.accepted == 0:
            yield "rejected_first"
        elif step.accepted + 1 == step.depth:
            yield "rejected_last"
        else:
            yield "rejected_middle"
        if step.residual is not None and step.residual < 0.25:
            yield "small_residual"
        if step.excluded and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
            yield "outside_truncation"
    if tree and step.accepted >= 3:
        yield "tree_deep"
    siblings = {parent: step.parents.index(parent) for parent in step.parents}
    if tree and any(siblings[step.parents[node]] != node for node in step.kept):
        yield "tree_branch"


def _after(before):
    if not before.parents:
        yield "after_nothing_drafted"
    if Role.RECOVERED in before.roles:
        yield "after_rejection"
    if Role.BONUS in before.roles:
        yield "after_kept_whole"


def _limits(step, sampling, gamma):
    if sampling.max_new_tokens - step.first <= gamma:
        yield "length_in_draft"
    if step.parents and step.first < sampling.min_tokens <= step.first + len(step.parents):
        yield "min_tokens_in_draft"


def _tokens(trace, step):
    sampling, prompt = trace.header.sampling, list(trace.header.prompt)
    for place in range(len(step.tokens)):
        index = step.first + place
        before = trace.token[:index].tolist()
        drafted = step.tokens[:place]
        position = len(prompt) + index
        if place and position % 16 == 0:
            yield "block_border"
        yield "context_short" if position < 64 else "context_medium" if position < 256 else "context_long"
        spans = trace.header.facts.get("tools", {}).get("spans", ())
        if step.parents and any(first <= index < end for first, end in spans):
            yield "tool_call"
        if step.parents and place + 1 == len(step.tokens) and any(end == index + 1 for _, end in spans):
            yield "tool_call_at_step_end"
        if trace.p[index] >= 0.9:
            yield "likely_token"
        if trace.p[index] < 0.1:
            yield "unlikely_token"
        if trace.margin[index] < 0.05:
            yield "near_tie"
        generated = before[: len(before) - place]
        if drafted and sampling.frequency_penalty:
            yield "penalty_in_draft"
        elif sampling.presence_penalty:
            if any(token not in generated for token in drafted):
                yield "penalty_in_draft"
        elif sampling.repetition_penalty != 1.0 and any(token not in prompt + generated for token in drafted):
            yield "penalty_in_draft"
        banned = bool(sampling.logit_bias)
        for word in sampling.bad_words:
            begun = list(word[:-1])
            banned |= not begun or (prompt + before)[-len(begun) :] == begun
        if place and banned:
            yield "ban_in_draft"
        if place and sampling.structured and trace.mask_count[len(before)] < trace.header.vocabulary:
            yield "grammar"


def _end(trace, every):
    header = trace.header
    by_token = header.finish_reason is FinishReason.EOS or (
        header.finish_reason is FinishReason.STOP and trace.tokens[-1] in header.sampling.stop_token_ids
    )
    by_text = header.finish_reason is FinishReason.STOP and not by_token
    last = every[-1]
    rest = len(last.parents) - last.accepted
    if last.roles[-1] == Role.ACCEPTED:
        where = "in" if rest > 0 else "at the end of"
    else:
        where = "behind" if last.roles[-1] == Role.BONUS else "outside"
    if by_token and where == "in":
        yield "end_in_draft"
    if by_token and where == "at the end of":
        yield "end_at_last_draft"
    if by_token and where == "behind":
        yield "end_at_bonus"
    if by_text and where == "in":
        yield "stop_string_in_draft"
    if by_text:
        text = spell(trace.tokens)
        stops = [stop for stop in header.sampling.stop if text.endswith(stop)]
        if max(len(stop) for stop in stops) > len(last.tokens):
            yield "stop_string_across_steps"


def batch(traces: list[Trace]) -> Iterator[str]:
    """Every occurrence that depends on the other rows, by asking every pair of requests."""
    stays = [(trace, trace.header.facts, trace.header.facts["round"]) for trace in traces]
    for trace, facts, start in stays:
        others = [(each, at, begin) for each, at, begin in stays if each is not trace and at["call"] == facts["call"]]
        if any(at["row"] == facts["row"] and begin + each.steps - 1 < start for each, at, begin in others):
            yield "row_reused"
        if any(begin + each.steps == start + trace.steps for each, _, begin in others):
            yield "rows_finish_together"
        for step in range(trace.steps):
            now = start + step
            beside = [(each, now - begin) for each, _, begin in others if 0 <= now - begin < each.steps]
            if step and any(begin == now for _, _, begin in others):
                yield "neighbour_joins"
            if any(each.position[at] != trace.position[step] for each, at in beside):
                yield "mixed_lengths"
            if any(each.n_drafted[at] != trace.n_drafted[step] for each, at in beside):
                yield "mixed_drafts"


def counted(traces: list[Trace], gamma: int, *, tree: bool) -> Counter[str]:
    names = Counter(batch(traces))
    prefixes = Counter(trace.header.prompt[:16] for trace in traces)
    for trace in traces:
        names.update(situations(trace, gamma, tree=tree))
        names["shared_prefix"] += len(trace.header.prompt) >= 16 and prefixes[trace.header.prompt[:16]] > 1
    return names
