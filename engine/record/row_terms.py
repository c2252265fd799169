"""What the reduction of a request's rows needs to know of the request; a trace's header has it."""

from __future__ import annotations

import typing

from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.row_digests import DigestKind


class RowTerms(typing.Protocol):
    """A trace header, or the part of one that an engine's process gets."""

    @property
    def level(self) -> RecordLevel:
        """The record level."""

    @property
    def protocol(self) -> Protocol:
        """The verification rule."""

    @property
    def vocabulary(self) -> int:
        """Size of the target's vocabulary."""

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of the request."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's end tokens."""

    @property
    def stream(self) -> int:
        """The random stream of the request."""

    @property
    def coupled_draft(self) -> bool:
        """True if the draft used the target's noise."""

    @property
    def digest_kind(self) -> DigestKind:
        """The hash function of the digests of rows and masks."""
