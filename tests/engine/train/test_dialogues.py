"""Generated dialogues: reproducible, and answerable from their prompts alone."""

import json
import random
import re
from collections import Counter

import pytest

from engine.train import dialogues, lexicon, prompts
from engine.train.dialogues import GENERATORS, TOOLS, draw, tool_schema

MAKERS = {make.__name__: make for _, make in GENERATORS}
COUNT = 60


def drawn(name, seed=0):
    rng = random.Random(seed)
    return [MAKERS[name](rng) for _ in range(COUNT)]


def ask(dialogue):
    return dialogue.messages[0]["content"]


def answer(dialogue):
    return dialogue.messages[-1]["content"]


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_gives_the_same_dialogues(name):
    assert drawn(name) == drawn(name)
    assert drawn(name) != drawn(name, seed=1)


@pytest.mark.parametrize("name", MAKERS)
def test_a_dialogue_is_a_question_and_ends_with_an_answer(name):
    for dialogue in drawn(name):
        assert dialogue.messages[0]["role"] == "user"
        assert dialogue.messages[-1]["role"] == "assistant"
        assert dialogue.domain in prompts.DOMAINS


@pytest.mark.parametrize("name", ["repeat_text", "repeat_words"])
def test_copies_stand_in_the_prompt(name):
    for dialogue in drawn(name):
        assert ask(dialogue).endswith(f": {answer(dialogue)}")


def test_answers_to_questions_are_stated_facts():
    for dialogue in drawn("question"):
        assert answer(dialogue) in ask(dialogue)
        who = re.search(r"What does (\w+) have\?$", ask(dialogue))[1]
        assert answer(dialogue).startswith(f"{who} has a ")


def test_sums_are_right():
    for dialogue in drawn("arithmetic"):
        a, sign, b = re.fullmatch(r"What is (\d+) (plus|minus) (\d+)\?", ask(dialogue)).groups()
        result = int(a) + int(b) if sign == "plus" else int(a) - int(b)
        assert answer(dialogue) == f"{a} {sign} {b} is {result}."


def test_json_answers_hold_what_the_prompt_says():
    for dialogue in drawn("json_object"):
        keys = re.match(r"Extract ([\w, ]+) as JSON", ask(dialogue))[1].split(", ")
        found = json.loads(answer(dialogue))
        assert list(found) == keys
        assert all(str(value) in ask(dialogue) for value in found.values())
    for dialogue in drawn("json_list"):
        rows = json.loads(answer(dialogue))
        assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))
        assert ask(dialogue) == f"List {len(rows)} people as JSON: " + "; ".join(map(dialogues.sentence_of, rows)) + "."


def test_tool_calls_carry_the_arguments_of_the_prompt_and_fit_an_offered_schema():
    import jsonschema

    seen = Counter()
    for dialogue in drawn("tool_call"):
        (call,) = dialogue.messages[1]["tool_calls"]
        offered = {tool["function"]["name"]: tool["function"] for tool in dialogue.tools}
        jsonschema.validate(call["arguments"], offered[call["name"]]["parameters"])
        assert call["name"] in ask(dialogue)
        for key, value in call["arguments"].items():
            assert f"{key} = {value}" in ask(dialogue)
        if len(dialogue.messages) > 2:
            result = json.loads(dialogue.messages[2]["content"])
            assert str(result["id"]) in answer(dialogue)
            assert result["status"] in answer(dialogue)
        seen[len(dialogue.messages)] += 1
    assert set(seen) == {2, 4}


@pytest.mark.parametrize("name", TOOLS)
def test_schemas_name_all_arguments(name):
    parameters = tool_schema(name)["function"]["parameters"]
    assert tuple(parameters["properties"]) == TOOLS[name] == tuple(parameters["required"])


def test_stories_are_about_what_was_asked():
    for dialogue in drawn("story"):
        who, color, item = re.fullmatch(
            r"Tell me a short story about (\w+) and a (\w+) (\w+)\.", ask(dialogue)
        ).groups()
        assert who in answer(dialogue)
        assert f"a {color} {item}" in answer(dialogue)


def test_unsafe_requests_are_refused_and_name_the_deed():
    for dialogue in drawn("refusal"):
        deed = next(deed for deed in lexicon.UNSAFE if deed in ask(dialogue))
        assert answer(dialogue).startswith(f"I can't help you {deed}.")


def test_the_mixture_has_its_shares():
    rng = random.Random(0)
    total = sum(weight for weight, _ in GENERATORS)
    assert total == pytest.approx(1.0)
    counts = Counter(draw(rng).domain for _ in range(4000))
    assert counts["tools"] / 4000 == pytest.approx(0.26, abs=0.03)
    assert set(counts) == set(prompts.DOMAINS)


def test_prompt_rows_are_fixed_distinct_and_without_answers():
    rows = prompts.prompt_rows(20)
    assert rows == prompts.prompt_rows(20)
    ids = [row["id"] for domain in rows.values() for row in domain]
    assert len(ids) == len(set(ids)) == 20 * (len(prompts.DOMAINS) + 1)
    for domain, found in rows.items():
        for row in found:
            assert ("prompt" in row) == (domain == "code")
            assert [message["role"] for message in row.get("messages", ())] in ([], ["user"])
            assert bool(row.get("tools")) == (domain == "tools")


def test_fewer_prompts_are_the_beginning_of_more_within_the_first_domain():
    assert prompts.prompt_rows(3)["tools"] == prompts.prompt_rows(9)["tools"][:3]


def test_written_prompts_read_back(tmp_path):
    prompts.write_prompts(tmp_path / "prompts", 4)
    for domain, rows in prompts.prompt_rows(4).items():
        lines = (tmp_path / "prompts" / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows
