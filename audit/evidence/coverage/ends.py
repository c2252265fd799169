"""Situations of ends and parameters: a draft that crosses a limit, and tokens that change later rows of their step."""

import numpy as np

from audit.evidence.coverage.view import Mask, RequestView
from engine.core.types import FinishReason, Role
from engine.record.trace import STOP_BEGINS


def _by_token(view: RequestView) -> bool:
    """True if an end or stop token ended the request."""
    reason, tokens = view.request.finish_reason, view.trace.token
    stopped = reason is FinishReason.STOP and len(tokens) > 0 and int(tokens[-1]) in view.sampling.stop_token_ids
    return reason is FinishReason.EOS or stopped


def _by_text(view: RequestView) -> bool:
    """True if a stop string ended the request."""
    return view.request.finish_reason is FinishReason.STOP and not _by_token(view) and bool(view.sampling.stop)


def _drafted(view: RequestView, *, inside: bool) -> bool:
    """True if the last token was drafted and drafted tokens follow it (`inside`), or if it is the draft's last."""
    if not view.tokens or int(view.trace.role[-1]) != Role.ACCEPTED:
        return False
    step = int(view.step[-1])
    return bool(view.drafted[step] > view.accepted[step]) == inside


def _at_end(view: RequestView, happened: bool) -> Mask:
    mask = view.nothing()
    mask[-1:] = happened
    return mask


def end_in_draft(view: RequestView) -> Mask:
    """Requests that an end token inside a draft ended."""
    return _at_end(view, _by_token(view) and _drafted(view, inside=True))


def end_at_last_draft(view: RequestView) -> Mask:
    """Requests that the last token of a draft ended."""
    return _at_end(view, _by_token(view) and _drafted(view, inside=False))


def end_at_bonus(view: RequestView) -> Mask:
    """Requests that a bonus token ended."""
    return _at_end(view, _by_token(view) and int(view.trace.role[-1]) == Role.BONUS)


def stop_string_in_draft(view: RequestView) -> Mask:
    """Requests that a stop string completed inside a draft ended."""
    return _at_end(view, _by_text(view) and _drafted(view, inside=True))


def stop_string_across_steps(view: RequestView) -> Mask | None:
    """Requests that a stop string ended whose first character an earlier step emitted."""
    if not _by_text(view):
        return view.nothing()
    begins = view.trace.header.facts.get(STOP_BEGINS)
    return None if begins is None else _at_end(view, bool(view.step[begins] < view.step[-1]))


def length_in_draft(view: RequestView) -> Mask:
    """Steps that begin with fewer tokens left than a whole draft and its bonus token have."""
    gamma = view.arm.gamma if view.arm.gamma is not None else int(view.drafted.max(initial=0))
    left = view.sampling.max_new_tokens - view.first
    return view.at_first(left <= gamma) if view.arm.speculates else view.nothing()


def min_tokens_in_draft(view: RequestView) -> Mask:
    """Steps in whose draft the minimum length is reached."""
    least = view.sampling.min_tokens
    return view.at_first((view.first < least) & (least <= view.first + view.drafted) & (view.drafted > 0))


def penalty_in_draft(view: RequestView) -> Mask:
    """Tokens whose penalties depend on a drafted token of the same step."""
    sampling = view.sampling
    mask = view.nothing()
    counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
    if not counted and sampling.repetition_penalty == 1.0:
        return mask
    seen = set() if counted else set(view.trace.header.prompt)
    changed, step = False, -1
    for index, (token, of_step) in enumerate(zip(view.trace.token.tolist(), view.step.tolist(), strict=True)):
        changed = changed and of_step == step
        mask[index] = changed
        changed |= bool(sampling.frequency_penalty) or token not in seen
        seen.add(token)
        step = of_step
    return mask


def ban_in_draft(view: RequestView) -> Mask:
    """Tokens after a drafted one of their step at which a biased or forbidden token had to be masked."""
    sampling = view.sampling
    inside = view.place > 0
    if sampling.logit_bias or any(len(word) == 1 for word in sampling.bad_words):
        return inside
    history, start = [*view.trace.header.prompt, *view.trace.token.tolist()], view.prompt
    mask = view.nothing()
    for index in np.flatnonzero(inside).tolist() if sampling.bad_words else ():
        before = history[: start + index]
        mask[index] = any(before[1 - len(word) :] == list(word[:-1]) for word in sampling.bad_words)
    return mask


def grammar(view: RequestView) -> Mask:
    """Tokens after a drafted one of their step whose row a grammar's mask forbade some token."""
    counts = view.trace.mask_count
    return np.asarray((view.place > 0) & (counts < view.trace.header.vocabulary)) if len(counts) else view.nothing()
