"""Refusals of requests that do not fit a target, in the words of every backend."""

from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Request


def require_prompt(request: Request, vocabulary: int) -> None:
    """Refuse a prompt that names a token which the target does not have.

    Raises:
        InvalidRequest: it does.
    """
    wrong = [token for token in request.prompt if not 0 <= token < vocabulary]
    if wrong:
        raise InvalidRequest(
            f"request {request.id}: the prompt names token {wrong[0]}, but ids end at {vocabulary - 1}"
        )


def require_length(request: Request, most: int, limit: str = "the target's context") -> None:
    """Refuse a request whose prompt and answer together could be longer than the `limit`.

    Raises:
        CapacityError: they could.
    """
    prompt, new = len(request.prompt), request.sampling.max_new_tokens
    if prompt + new > most:
        raise CapacityError(
            f"request {request.id}: prompt of {prompt} tokens and max_new_tokens {new} exceed {limit} of {most}; "
            "shorten the prompt or lower max_new_tokens"
        )
