"""Answers from one document and from streams: the same, or malformed."""

import copy
import math
from dataclasses import replace

import pytest

from engine.backends.openai.errors import AttemptError, FailureKind, of_status, said
from engine.backends.openai.forms.draft_counts import predicted
from engine.backends.openai.forms.native import NativeReader
from engine.backends.openai.forms.token_lists import Piece
from engine.backends.openai.response import Collector, Completion, ToolCall, read
from engine.backends.openai.secret import Secret
from engine.backends.openai.surface import WHOLE_LISTS, fields_of

CHAT = {
    "id": "a",
    "model": "m",
    "system_fingerprint": "f",
    "prompt_token_ids": [7, 8],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi you"},
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [1, 2],
            "logprobs": {
                "content": [
                    {"token": "Hi", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -1.5}]},
                    {"token": " you", "logprob": -2.0, "top_logprobs": [{"logprob": -1.0}, {"logprob": -2.0}]},
                ]
            },
        }
    ],
    "usage": {"completion_tokens": 2},
}
SCORES = CHAT["choices"][0]["logprobs"]["content"]
STREAM = [
    {"id": "a", "model": "m", "prompt_token_ids": [7, 8], "choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"id": "a", "choices": [{"delta": {"content": "Hi"}, "token_ids": [1], "logprobs": {"content": SCORES[:1]}}]},
    {
        "id": "a",
        "system_fingerprint": "f",
        "choices": [
            {
                "delta": {"content": " you"},
                "token_ids": [2],
                "logprobs": {"content": SCORES[1:]},
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
    },
    {"id": "a", "choices": [], "usage": {"completion_tokens": 2}},
]


def collected(parts):
    collector = Collector()
    told = [collector.add(part) for part in parts]
    return collector.answer(), told


def test_a_stream_gives_the_answer_that_the_document_gives():
    answer, told = collected(STREAM)
    assert answer == read(CHAT)
    assert told == [False, True, True, False]


def test_a_document_is_read():
    answer = read(CHAT)
    assert answer.pieces == (Piece("Hi", -0.5, 1.0), Piece(" you", -2.0, 1.0))
    assert (answer.token_ids, answer.prompt_ids, answer.finish) == ((1, 2), (7, 8), "stop")
    assert (answer.known_stop, answer.stop_reason, answer.text) == (True, None, "Hi you")
    assert answer.meta == {"id": "a", "model": "m", "system_fingerprint": "f"}


def test_the_older_route_has_its_own_form():
    logprobs = {
        "tokens": ["x", "token_id:5"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"a": -3.0, "b": -1.0}],
    }
    answer = read({"choices": [{"text": "xy", "finish_reason": "length", "logprobs": logprobs}]})
    assert answer.text == "xy"
    assert math.isnan(answer.pieces[0].logprob)
    assert answer.pieces[1] == Piece("token_id:5", -1.0, 2.0, 5)


@pytest.mark.parametrize(
    ("logprob", "listed", "flaw"),
    [
        (-0.5, {"x": -0.5, "y": -1.0}, ""),
        (-1.0, {"x": -1.0, "y": -1.0}, ""),
        (-3.0, {"y": -0.5, "z": -1.0}, ""),
        (-0.5, {}, ""),
        (0.25, {}, "log-probability 0.25 of 'x' is above 0"),
        (-0.5, {"x": -0.7, "y": -1.0}, "'x' has log-probability -0.5, in its own list -0.7"),
        (-0.5, {"y": -0.6, "z": -0.7}, "'x' is likelier than a token of its own list, which does not hold it"),
    ],
)
def test_a_token_is_held_against_its_own_list(logprob, listed, flaw):
    older = {"tokens": ["x"], "token_logprobs": [logprob], "top_logprobs": [listed]}
    tops = [{"token": text, "logprob": value} for text, value in listed.items()]
    entry = {"token": "x", "logprob": logprob, "top_logprobs": tops}
    for logprobs in (older, {"content": [entry]}):
        (piece,) = read({"choices": [{"text": "x", "finish_reason": "length", "logprobs": logprobs}]}).pieces
        assert (piece.flaw, piece.rivals) == (flaw, len(listed))
        assert not listed or piece.behind == max(listed.values()) - logprob


@pytest.mark.parametrize("parts", [False, True])
def test_tokens_of_one_text_share_a_key_of_the_older_route(parts):
    """A list of one entry per text lost the likelier of two of one text, the token itself or a neighbour."""
    part = "\ufffd"
    texts = ["x", "w", "w", part, "v"]
    values = [-0.5, -0.4, -0.7, -0.7, -2.0]
    tops = [{"x": -0.5, "y": -1}, {"w": -1.5}, {"w": -0.9, "y": -1.0}, {part: -0.9, "y": -1.0}, {"a": -0.1, "b": -1}]
    entry = [
        {"tokens": [text], "token_logprobs": [value], "top_logprobs": [top]}
        for text, value, top in zip(texts, values, tops, strict=True)
    ]
    whole = {"tokens": texts, "token_logprobs": values, "top_logprobs": tops}
    chunks = [{"choices": [{"text": "x", "logprobs": each}]} for each in (entry if parts else [whole])]
    pieces = collected([*chunks, {"choices": [{"text": "", "finish_reason": "length"}]}])[0].pieces
    assert [piece.flaw for piece in pieces] == ["", "", "'w' has log-probability -0.7, in its own list -0.9", "", ""]
    assert [round(piece.lead, 6) for piece in pieces[::2]] == [0.5, 0.1, 0.9]
    assert all(math.isnan(piece.lead) for piece in pieces[1::2])
    # tokens of one text share an entry, so a short list is no lost feature by itself; an empty one is
    assert {"top_logprobs", WHOLE_LISTS} & set(fields(pieces, 3)) == {"top_logprobs"}
    assert WHOLE_LISTS in fields(pieces[:1], 2)
    assert "top_logprobs" not in fields([replace(pieces[0], rivals=0)], 3)
    assert "top_logprobs" not in fields([replace(pieces[0], keyed=False)], 3)


@pytest.mark.parametrize(
    ("rivals", "value", "flaw"),
    [
        (0, -0.9, "'' has log-probability -0.7, in its own list -0.9"),
        (2, -0.9, "'' has log-probability -0.7, in its own list -0.9"),
        (3, -0.9, ""),
        # vLLM puts the token itself first, so that a likelier one of the same text overwrites it
        (2, -0.6, "'' has log-probability -0.7, in its own list -0.6"),
        (3, -0.6, ""),
    ],
)
def test_a_list_that_is_shorter_than_asked_lost_an_entry_although_all_are(rivals, value, flaw):
    logprobs = {"tokens": [""], "token_logprobs": [-0.7], "top_logprobs": [{"": value, "y": -1.0}]}
    (piece,) = read({"choices": [{"text": "", "finish_reason": "length", "logprobs": logprobs}]}, rivals).pieces
    assert piece.flaw == flaw
    assert math.isnan(piece.lead) is (rivals == 3)


def fields(pieces, rivals):
    return fields_of(Completion("text", "length", pieces=tuple(pieces)), rivals)


def test_tool_calls_come_in_parts_and_leave_their_ids_behind():
    parts = [
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "go"}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"to": '}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 1, "function": {"name": "stop", "arguments": "{}"}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ]
    calls = [
        {"id": "other", "type": "function", "function": {"name": "go", "arguments": '{"to": "Oslo"}'}},
        {"id": "again", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
    ]
    message = {"content": None, "tool_calls": calls}
    whole = read({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    assert collected(parts)[0] == whole
    assert whole.tool_calls == (ToolCall("go", '{"to": "Oslo"}'), ToolCall("stop", "{}"))
    assert whole.text == (
        '{"content": "", "tool_calls": [{"name": "go", "arguments": "{\\"to\\": \\"Oslo\\"}"}, '
        '{"name": "stop", "arguments": "{}"}]}'
    )


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_part_of_what_was_said(key):
    answer = read({"choices": [{"message": {"content": "4", key: "2+2"}, "finish_reason": "stop"}]})
    assert answer.text == '{"content": "4", "reasoning": "2+2"}'


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (
            {"metrics": {"speculative_decoding": {"num_draft_tokens": 6, "num_accepted_draft_tokens": 2}}},
            {"drafted": 6, "accepted": 2},
        ),
        ({"timings": {"draft_n": 6, "draft_n_accepted": 2}}, {"drafted": 6, "accepted": 2}),
        ({"metrics": {"speculative_decoding": None}}, None),
        ({"timings": {"predicted_n": 4}}, None),
    ],
)
def test_counts_of_drafts_are_read_where_there_are_any(metrics, told):
    assert read({**CHAT, **metrics}).speculation == told


def broken(change):
    document = copy.deepcopy(CHAT)
    change(document, document["choices"][0])
    return document


@pytest.mark.parametrize(
    "change",
    [
        lambda whole, choice: whole.update(choices=[choice, choice]),
        lambda whole, choice: whole.update(choices=[]),
        lambda whole, choice: whole.update(choices={}),
        lambda whole, choice: whole.update(choices=[None]),
        lambda whole, choice: whole.update(usage=[1]),
        lambda whole, choice: choice.update(finish_reason=None),
        lambda whole, choice: choice.update(finish_reason=3),
        lambda whole, choice: choice.update(message=["Hi"]),
        lambda whole, choice: choice["message"].update(content=["Hi"]),
        lambda whole, choice: choice["message"].update(tool_calls={"a": 1}),
        lambda whole, choice: choice["message"].update(tool_calls=[{"index": "a"}]),
        lambda whole, choice: choice.update(token_ids=["1"]),
        lambda whole, choice: choice.update(token_ids=[-1]),
        lambda whole, choice: choice.update(token_ids=[True]),
        lambda whole, choice: choice.update(logprobs=[1]),
        lambda whole, choice: choice["logprobs"].update(content=[1]),
        lambda whole, choice: choice["logprobs"]["content"][0].update(logprob="-1"),
        lambda whole, choice: choice["logprobs"]["content"][0].update(token=1),
        lambda whole, choice: choice.update(logprobs={"tokens": ["a"], "token_logprobs": []}),
    ],
)
def test_a_field_of_a_wrong_type_is_malformed_and_worth_another_try(change):
    with pytest.raises(AttemptError) as caught:
        read(broken(change))
    assert caught.value.kind is FailureKind.MALFORMED
    assert caught.value.again


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_malformed(document):
    with pytest.raises(AttemptError, match="is no JSON object"):
        read(document)


def test_a_document_that_is_an_error_is_one():
    with pytest.raises(AttemptError, match="answers with an error"):
        read({"error": {"message": "out of memory"}})


@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (429, FailureKind.HTTP, True),
        (500, FailureKind.HTTP, True),
        (503, FailureKind.HTTP, True),
        (408, FailureKind.HTTP, True),
        (400, FailureKind.REFUSED, False),
        (401, FailureKind.REFUSED, False),
        (404, FailureKind.REFUSED, False),
        (307, FailureKind.REFUSED, False),
    ],
)
def test_a_status_says_whether_to_try_again(status, kind, again):
    attempt_error = of_status(status, "no", None)
    assert (attempt_error.kind, attempt_error.again, attempt_error.status) == (kind, again, status)
    assert attempt_error.facts(2)["attempts"] == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"error": {"message": "no  such\\nmodel"}}', "no such model"),
        ('{"detail": [{"msg": "x"}]}', "[{'msg': 'x'}]"),
        ('{"message": "no"}', "no"),
        ("<html>", "<html>"),
        ("", "no words"),
        ("[" * 200_000, ("[" * 300)),
    ],
)
def test_a_servers_words_are_one_line(text, words):
    assert said(text, Secret()) == words


def of_sglang(**more):
    return read({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], **more})


def test_sglang_counts_drafts_in_its_own_place():
    told = {"spec_num_proposed_drafts": 12, "spec_num_correct_drafts": 7, "spec_verify_ct": 4, "spec_accept_rate": 0.6}
    assert of_sglang(sglext={"spec_tokens_details": told}).speculation == {"drafted": 12, "accepted": 7, "steps": 4}
    assert of_sglang(sglext={"spec_tokens_details": None}).speculation is None
    assert of_sglang(sglext={"spec_tokens_details": {}}).speculation is None


@pytest.mark.parametrize("names", [("draft_token_num", "accept_token_num"), ("proposed_drafts", "accepted_drafts")])
def test_older_versions_of_sglang_count_under_other_names(names):
    told = {f"spec_{name}": count for name, count in zip(names, (12, 7), strict=True)}
    lengths = {"spec_accept_histogram": [1, 2, 1]}
    counted = of_sglang(sglext={"spec_tokens_details": {**told, **lengths}}).speculation
    assert counted == {"drafted": 12, "accepted": 7, "steps_by_accepted": [1, 2, 1]}


def test_sglang_names_the_reason_of_a_stop_otherwise():
    choice = {"text": "x", "finish_reason": "stop", "matched_stop": "zz"}
    assert (read({"choices": [choice]}).stop_reason, read({"choices": [choice]}).known_stop) == ("zz", True)


@pytest.mark.parametrize(("average", "usage", "counts"), [(2.5, 10, {"steps": 4}), (None, 10, None), (2.5, None, None)])
def test_tensorrt_llm_counts_iterations(average, usage, counts):
    choice = {"text": "x", "finish_reason": "stop", "avg_decoded_tokens_per_iter": average}
    assert read({"choices": [choice], "usage": {"completion_tokens": usage}}).speculation == counts


def test_a_number_that_stands_for_none_is_none_and_no_contradiction():
    tops = [{"token": "b", "logprob": -9999.0}, {"token": "c", "logprob": -1.0}]
    content = [{"token": "a", "logprob": -9999.0, "top_logprobs": tops}]
    (piece,) = read({"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"content": content}}]}).pieces
    assert math.isnan(piece.logprob)
    assert piece.flaw == ""


END = {"type": "stop", "matched": 5}


def native(*parts):
    reader, collector = NativeReader(), Collector()
    for part in parts:
        collector.add(reader.part(part))
    return collector.answer()


def native_part(text, ids, total, **meta):
    scores = [[-1.0, token, None] for token in ids]
    told = {"completion_tokens": total, "finish_reason": None, "output_token_logprobs": scores, **meta}
    return {"text": text, "output_ids": ids, "meta_info": told}


def test_parts_of_sglang_that_repeat_the_answer_and_parts_that_go_on_are_one_answer():
    again = native(native_part("a", [5], 1), native_part("aaa", [5, 5, 5], 3, finish_reason=END))
    on = native(native_part("a", [5], 1), native_part("aa", [5, 5], 3, finish_reason=END))
    assert again == on
    assert (again.content, again.token_ids, len(again.pieces)) == ("aaa", (5, 5, 5), 3)
    assert (again.finish, again.stop_reason, again.known_stop) == ("stop", 5, True)
    assert [piece.text for piece in again.pieces] == ["token_id:5"] * 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_ids": 3}, "meta_info, text or output_ids has a wrong type"),
        ({"meta_info": []}, "meta_info, text or output_ids has a wrong type"),
        ({"meta_info": {"output_token_logprobs": [[-1.0, 5]]}}, "no list of value, token and text"),
        ({"meta_info": {"output_token_logprobs": [], "output_top_logprobs": [None]}}, "has 0 entries"),
        ({"meta_info": {"output_token_logprobs": 3}}, "output_token_logprobs is no list"),
        ({"meta_info": {"output_token_logprobs": [[-1.0, 5, "a"]], "output_top_logprobs": [3]}}, "is no list"),
        ({"meta_info": {"finish_reason": {"type": 3}}}, "finish_reason is no text"),
    ],
)
def test_a_malformed_answer_of_sglang_is_one_line(changes, words):
    with pytest.raises(AttemptError, match=words) as caught:
        native({**native_part("a", [5], 1), **changes})
    assert caught.value.kind is FailureKind.MALFORMED


@pytest.mark.parametrize(
    ("details", "counts"),
    [
        ({"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 3}, {"drafted": 8, "accepted": 5}),
        ({"accepted_prediction_tokens": None, "rejected_prediction_tokens": None}, None),
        ({"accepted_prediction_tokens": 5}, None),
        (None, None),
    ],
)
def test_gateways_count_drafts_as_predictions(details, counts):
    assert predicted({"completion_tokens_details": details}) == counts
    assert predicted({}) is None
