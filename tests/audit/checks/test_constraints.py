"""Answers and masks under a grammar: decoding that leaves it, and a library that is wrong by itself."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.checks.schema_conformance.judges import judge_of
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.constraints.compiled import Grammars
from engine.constraints.interface import TokenSpelling
from engine.core.structured import constraint_of
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import PlainProposer, ProposerParts
from engine.record.effective import Effective
from engine.record.mask_bits import packed, unpacked
from engine.record.rows.row_digests import digests
from engine.record.trace import decode
from engine.sampling.draw import draw
from tests.engine.constraints.arms import CHOICE, LARK, LIBRARIES, SENTENCE, decoded, requests, sampling

MASKS, ANSWERS = checks.load("constraint_replay"), checks.load("schema_conformance")
BYTES_AND_END = TokenSpelling((*(bytes([byte]) for byte in range(256)), b""), lambda text: list(text.encode()))
END = 256
SHORT_TEXT = {"json": {"type": "string", "minLength": 1, "maxLength": 5}}


def record(generation) -> RequestRecord:
    trace = decode(generation.trace)
    facts = (trace, generation.tokens, generation.text, generation.finish_reason)
    return RequestRecord(generation.request.id, generation.request.id, 0, "chat", *facts, 1, intact=True)


def arm(generations, kind=ArmKind.CANDIDATE) -> ArmRecord:
    records = sorted(map(record, generations), key=lambda each: each.request_id)
    return ArmRecord("spec", kind, Level.L4, Effective(), tuple(records))


def judged(check, candidate, baseline=None):
    return evaluate(check, Evidence(candidate, baseline), {})


@functools.cache
def candidate(level=RecordLevel.FULL, fault=None) -> ArmRecord:
    params = [sampling(each, temperature=1.0, max_new_tokens=60) for each in (SENTENCE, LARK, CHOICE)]
    return arm(decoded(Protocol.CHAIN, "draft_model", requests(12, *params), level=level, fault=fault).values())


@pytest.mark.medium
@pytest.mark.parametrize("level", RecordLevel)
def test_sound_arms_are_certified(level):
    assert judged(MASKS, candidate(level)).verdict is Verdict.CERTIFIED
    found = judged(ANSWERS, candidate(level), candidate(level))
    assert (found.verdict, found.n + found.details["cut"]) == (Verdict.CERTIFIED, 12)
    assert found.n > 6


def changed(request: RequestRecord, **columns) -> RequestRecord:
    return replace(request, trace=replace(request.trace, **columns))


def with_first(change) -> ArmRecord:
    first, *others = candidate().requests
    return replace(candidate(), requests=(change(first), *others))


class TestConstraintReplay:
    @pytest.mark.medium
    def test_a_mask_of_another_state_is_found_at_its_token(self):
        def shift(request):
            bits = request.trace.mask_bits.copy()
            bits[3:] = bits[2:-1]
            return changed(request, mask_bits=bits, mask_digest=digests(bits))

        found = judged(MASKS, with_first(shift))
        assert found.verdict is Verdict.FAULT
        assert [each.request for each in found.findings] == ["r0"]
        assert "is that of another state" in found.findings[0].message

    def test_another_number_of_allowed_tokens_is_found(self):
        found = judged(MASKS, with_first(lambda request: changed(request, mask_count=request.trace.mask_count + 1)))
        assert found.verdict is Verdict.FAULT
        assert found.statistic == len(candidate().requests[0].tokens)

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("library", "outlines", "another library"),
            ("whole", None, "another end"),
            ("text", "x", "another text"),
            ("version", "0.1", "another version"),
            ("vocabulary", "0" * 16, "another vocabulary"),
        ],
    )
    def test_an_account_that_contradicts_the_record_is_found(self, name, value, words):
        def state(request):
            facts = request.trace.header.facts
            account = facts["constraint"]
            other = {**account, name: not account[name] if value is None else value}
            header = replace(request.trace.header, facts={**facts, "constraint": other})
            return changed(request, header=header)

        found = judged(MASKS, with_first(state))
        assert found.verdict is Verdict.FAULT
        assert words in found.findings[0].message

    def test_bits_that_are_not_those_of_the_digest_are_found(self):
        def flip(request):
            bits = request.trace.mask_bits.copy()
            bits[1] ^= 1
            return changed(request, mask_bits=bits)

        assert "not what its digest says" in judged(MASKS, with_first(flip)).findings[0].message

    def test_a_token_that_its_mask_forbids_is_found(self):
        def forbid(request):
            trace = request.trace
            masks = np.stack([trace.allowed(at) for at in range(len(trace.token))])
            token = trace.token.copy()
            token[1] = int(np.flatnonzero(~masks[1])[0])
            return changed(request, token=token)

        assert "number 2: the mask forbids it" in judged(MASKS, with_first(forbid)).findings[0].message

    def test_masks_without_a_second_account_are_open(self):
        def forget(request):
            return changed(request, header=replace(request.trace.header, facts={}))

        assert judged(MASKS, with_first(forget)).verdict is Verdict.INCONCLUSIVE
        alone = replace(candidate(), requests=tuple(map(forget, candidate().requests)))
        found = judged(MASKS, alone)
        assert (found.verdict, found.lacking) == (Verdict.NOT_RUN, True)

    def test_the_reason_for_a_missing_account_is_said(self):
        why = {"constraint": {"library": "xgrammar", "unread": "vLLM has xgrammar 0.2.7 and the audit 0.2.8"}}
        requests = tuple(
            replace(each, trace=replace(each.trace, header=replace(each.trace.header, facts=why)))
            for each in candidate().requests
        )
        found = judged(MASKS, replace(candidate(), requests=requests))
        assert found.verdict is Verdict.NOT_RUN
        assert found.summary == "vLLM has xgrammar 0.2.7 and the audit 0.2.8"

    def test_missing_masks_are_found(self):
        found = judged(MASKS, with_first(lambda request: changed(request, mask_digest=np.empty(0, np.uint64))))
        assert "0 masks are on record" in found.findings[0].message


class TestSchemaConformance:
    def test_an_answer_that_left_the_grammar_is_laid_at_decoding(self):
        def spoil(request):
            facts = {"constraint": {**request.trace.header.facts["constraint"], "refused": 2, "text": "a?"}}
            return changed(request, header=replace(request.trace.header, facts=facts))

        found = judged(ANSWERS, with_first(spoil), candidate())
        assert found.verdict is Verdict.FAULT
        assert found.details["invalid_by"] == {"decoding": 1, "library": 0, "unknown": 0}
        assert "in 1 of them decoding left the grammar; 0 of" in found.summary
        assert "the expression does not match 'a?'; the grammar library refuses it too" in found.findings[0].message

    def test_cut_answers_are_counted_apart(self):
        cut = with_first(lambda request: replace(request, finish_reason=FinishReason.LENGTH, text="ab"))
        found = judged(ANSWERS, cut)
        assert found.verdict is Verdict.CERTIFIED
        assert found.details["cut"] == judged(ANSWERS, candidate()).details["cut"] + 1

    @pytest.mark.medium
    def test_arms_without_a_finished_answer_are_open(self):
        every = tuple(replace(each, finish_reason=FinishReason.LENGTH) for each in candidate().requests)
        found = judged(ANSWERS, replace(candidate(), requests=every))
        assert (found.verdict, found.summary) == (
            Verdict.INCONCLUSIVE,
            "no answer is finished, 12 were cut; raise max_new_tokens",
        )

    def test_arms_without_a_grammar_are_left_out(self):
        plain = [
            replace(each, sampling=replace(each.sampling, structured=None)) for each in requests(2, sampling(LARK))
        ]
        without = arm(decoded(Protocol.CHAIN, "draft_model", plain).values())
        for check in (MASKS, ANSWERS):
            found = judged(check, without)
            assert (found.verdict, found.lacking) == (Verdict.NOT_RUN, False)


def written(tokens) -> str:
    return bytes(token for token in tokens if token != END).decode()


def control_characters(speculative: bool, library: str) -> ArmRecord:
    """A model that likes new lines in texts, under a schema with a limit of length."""

    def script(prefix):
        row = np.zeros(257)
        row[ord("\n")], row[ord('"')], row[END] = 6.0, 5.0 if len(prefix) > 3 else 1.0, 4.0
        return row

    target = ScriptedModel(script, 257, eos_ids=(END,))
    verifier, options = verify.load(Protocol.GREEDY), LoopOptions(2, 3, 64, RecordLevel.SCALARS)
    proposer = PlainProposer()
    if speculative:
        parts = ProposerParts(2, 64, verifier.facts.draft_rule, draw, (END,), target)
        proposer = proposers.build("draft_model", parts)
    grammars = Grammars(lambda: BYTES_AND_END, (END,))
    loop = Loop(
        target,
        proposer,
        verifier,
        lambda tokens: bytes(t for t in tokens if t != END).decode(),
        options,
        grammars=grammars,
    )
    params = SamplingParams(max_new_tokens=12, structured=constraint_of(SHORT_TEXT, library))
    return arm(loop.run([Request("a", (5,), params), Request("b", (6, 7), params)]))


def test_a_defect_of_the_grammar_library_is_not_laid_at_speculation():
    """xgrammar 0.2.8 allows raw control characters in strings with a limit of length; JSON has none."""
    found = judged(ANSWERS, control_characters(True, "xgrammar"), control_characters(False, "xgrammar"))
    assert found.verdict is Verdict.FAULT
    assert found.details["invalid_by"] == {"decoding": 0, "library": 2, "unknown": 0}
    assert found.details["baseline"]["invalid"] == 2
    assert (
        "the grammar library accepts them: it is wrong, not speculation; 2 of 2 of the baseline's are" in found.summary
    )
    assert "Invalid control character" in found.findings[0].message
    assert judged(MASKS, control_characters(True, "xgrammar")).verdict is Verdict.CERTIFIED


def test_the_default_library_has_no_such_defect():
    found = judged(ANSWERS, control_characters(True, "llguidance"), control_characters(False, "llguidance"))
    assert not found.findings


@pytest.mark.parametrize(
    ("document", "text", "problem"),
    [
        (SHORT_TEXT, '"ab"', None),
        (SHORT_TEXT, '"abcdef"', "the schema refuses it"),
        (SHORT_TEXT, '"a\nb"', "control character"),
        (SHORT_TEXT, '"a"x', "Extra data"),
        ({"json": {"type": "number"}}, "NaN", "NaN is no JSON number"),
        ({"json": {"type": "number"}}, "-Infinity", "no JSON number"),
        (SENTENCE, "ab cd.", None),
        (SENTENCE, "ab cd.\n", "does not match"),
        (CHOICE, "am", None),
        (CHOICE, "a", "none of the choices"),
        (LARK, "ab, c.", None),
        (LARK, "ab, c", "is not whole"),
        (LARK, "ab; c.", "refuses byte 3"),
    ],
)
@pytest.mark.parametrize("library", LIBRARIES)
def test_judges(document, text, problem, library):
    found = judge_of(constraint_of(document, library))(text).problem
    assert found is None if problem is None else problem in (found or "")


def test_repeated_keys_are_noted_and_an_unread_expression_is_no_verdict():
    assert judge_of(constraint_of({"json": {"type": "object"}}))('{"a": 1, "a": 2}').repeated_keys
    assert "re does not read" in (judge_of(constraint_of({"regex": r"\p{L}+"}))("a").silent or "")


def test_a_missing_library_leaves_lark_grammars_open(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install" in (judge_of(constraint_of(LARK))("ab.").silent or "")


def test_packed_masks_come_back():
    masks = np.random.Generator(np.random.Philox(key=3)).random((4, 19)) < 0.5
    assert np.array_equal(np.stack([unpacked(row, 19) for row in packed(masks)]), masks)
