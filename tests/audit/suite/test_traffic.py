"""Own traffic as a workload: each format's records become prompts, and a wrong shape is told with its line."""

import csv
import json
import logging
from collections import Counter

import pytest

from audit.errors import UserError
from audit.suite.loader import load_suite
from audit.suite.traffic.conversation import messages_of, requested
from audit.suite.traffic.source import READERS, likely_format
from schemas import load
from tests.support.cases import every_case

USER = {"role": "user", "content": "Hi."}
BODY = {"model": "m", "messages": [USER], "temperature": 0.5}


def suite_of(folder, content, form, *, name="traffic.txt", backend="scripted", **source):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    document = {
        "version": 1,
        "name": "traffic",
        "backend": backend,
        "models": {"target": "scripted:1"},
        "workloads": [{"name": "w", "source": {"file": name, "format": form, **source}}],
        "arms": [{"name": "a", "proposer": {"kind": "ngram", "gamma": 2}, "verifier": "greedy"}],
    }
    (folder / "suite.yaml").write_text(json.dumps(document, indent=1))
    return load_suite(folder / "suite.yaml")


def lines(*records):
    return "\n".join(map(json.dumps, records))


def cases_of(folder, content, form, **source):
    return suite_of(folder, content, form, **source).cases


def fault(folder, content, form, **source):
    with pytest.raises(UserError) as error:
        suite_of(folder, content, form, **source)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_schema_names_the_registered_formats():
    source = load("suite")["$defs"]["workload"]["properties"]["source"]
    assert sorted(source["properties"]["format"]["enum"]) == sorted(READERS)


def test_conversations_without_their_last_answer(tmp_path):
    answer, again = {"role": "assistant", "content": "Ho."}, {"role": "user", "content": "More?"}
    said = [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Ho."}]
    whole, open_, shared = cases_of(
        tmp_path,
        lines(
            {"messages": [USER, answer, again, answer]},
            {"messages": [USER, answer, again], "tools": [{"type": "function", "function": {"name": "f"}}]},
            {"id": "s1", "conversations": said},
        ),
        "chat",
    )
    assert list(whole.messages) == [USER, answer, again] == list(open_.messages)
    assert len(open_.tools) == 1
    assert (shared.id, list(shared.messages)) == ("w/s1", [USER])
    (array,) = cases_of(tmp_path, json.dumps([{"conversations": said}], indent=1), "chat")
    assert (array.id, list(array.messages)) == ("w/1", [USER])


def test_bodies_of_requests(tmp_path):
    chosen = {"type": "function", "function": {"name": "f"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    with every_case() as case:
        for name, body, rows in (
            ("chat", BODY, [{"messages": [USER]}]),
            ("parts", {"messages": [{"role": "developer", "content": parts}]}, [{"messages": [said("system", "ab")]}]),
            ("tools", {**BODY, "tools": tools, "tool_choice": chosen}, [{"messages": [USER], "tools": tools}]),
            ("completions", {"prompt": ["a", "b"]}, [{"prompt": "a"}, {"prompt": "b"}]),
            ("ids", {"prompt": [1, 2]}, [{"tokens": [1, 2]}]),
            ("lists of ids", {"prompt": [[1, 2], [3]]}, [{"tokens": [1, 2]}, {"tokens": [3]}]),
            ("responses", {"input": "Hi."}, [{"messages": [USER]}]),
            ("instructions", {"input": [USER], "instructions": "x"}, [{"messages": [said("system", "x"), USER]}]),
        ):
            with case(name):
                got = [dict(row) for row in requested(body)]
                assert got[0].pop("tool_choice", None) == ({"name": "f"} if name == "tools" else None)
                assert got == rows
        for name, body in (
            ("none", {}),
            ("empty", {"prompt": ""}),
            ("object", {"prompt": {}}),
            ("mixed", {"prompt": [[], 1]}),
        ):
            with case(name), pytest.raises(ValueError, match="no messages, prompt or input"):
                list(requested(body))


def said(role, content):
    return {"role": role, "content": content}


def test_a_message_of_another_form_is_refused():
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with every_case() as case:
        for name, value, why in (
            ("picture", [picture], '"image_url" is no text'),
            ("role", [{"role": "narrator", "content": "x"}], '"narrator"'),
            ("text", "Hi.", "no list of messages"),
            ("none", [], "no list of messages"),
            ("texts", ["Hi."], "no list of messages"),
            ("number", [{"role": "user", "content": 5}], '"int" is no text'),
        ):
            with case(name), pytest.raises(ValueError, match=why):
                messages_of(value)


def test_samples_of_the_harness(tmp_path):
    row = {"doc_id": 0, "doc": {"subject": "college maths"}, "filter": "strict", "resps": []}
    called = {"gen_args_0": {"arg_0": "1+1=", "arg_1": {"until": []}}}
    chat = {"gen_args_0": {"arg_0": [json.dumps([USER])], "arg_1": {}}}
    choices = {f"gen_args_{i}": {"arg_0": "Sky is", "arg_1": word} for i, word in enumerate(("blue", "red"))}
    records = (
        row | {"arguments": called},
        row | {"arguments": called, "filter": "flexible"},
        row | {"doc_id": 1, "arguments": chat},
        row | {"doc_id": 2, "arguments": choices},
        row | {"doc_id": 3, "arguments": [["old form", {}]]},
        row | {"doc_id": 4, "arguments": {"gen_args_0": {"arg_0": "[1, 2]"}, "gen_args_1": {"arg_0": "b"}}},
    )
    cases = cases_of(tmp_path, lines(*records), "lm_eval", columns={"domain": "doc.subject"})
    assert [(case.id, case.prompt) for case in cases] == [
        ("w/0", "1+1="),
        ("w/1", None),
        ("w/2", "Sky is"),
        ("w/3", "old form"),
        ("w/4", "[1, 2]"),
        ("w/4-6.2", "b"),
    ]
    assert list(cases[1].messages) == [USER]
    assert {case.domain for case in cases} == {"college_maths"}


def test_tables(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out, delimiter=";")
        writer.writerows([("question", "topic", "chat"), ("Two\nlines?", "a b", json.dumps([USER])), ("x", "", "[]")])
    content = path.read_bytes()
    columns = {"prompt": "question", "domain": "topic"}
    first, second = cases_of(tmp_path, content, "csv", columns=columns)
    assert (first.id, first.prompt, first.domain) == ("w/3", "Two\nlines?", "a_b")
    assert (second.id, second.domain) == ("w/4", "none")
    assert "traffic.txt:4: column of messages" in fault(tmp_path, content, "csv", columns={"messages": "chat"})
    message = fault(tmp_path, content, "csv")
    assert 'columns: {prompt: NAME}; there: "question", "topic", "chat"' in message
    assert 'no column "asked" for prompt' in fault(tmp_path, content, "csv", columns={"prompt": "asked"})


def test_parquet_of_pandas(tmp_path):
    import pandas

    frame = pandas.DataFrame({"chat": [[USER], [USER, said("assistant", "Ho.")]], "n": [1, 2], "kind": ["a", "b"]})
    frame.to_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    columns = {"messages": "chat", "id": "n", "domain": "kind"}
    cases = cases_of(tmp_path, content, "parquet", columns=columns)
    assert [(case.id, list(case.messages), case.domain) for case in cases] == [
        ("w/1", [USER], "a"),
        ("w/2", [USER], "b"),
    ]
    assert "no Parquet" in fault(tmp_path, content[:-9], "parquet")


def test_logs_of_vllm(tmp_path):
    bodies = (
        "(APIServer pid=7) INFO 12-01 [x.py:46] Received request chatcmpl-1: params: SamplingParams(n=1), lora: None.\n"
        f"(APIServer pid=7) DEBUG 12-01 [x.py:55] Request chatcmpl-1 JSON body: {json.dumps(BODY)}\n"
        "(APIServer pid=7) DEBUG 12-01 [x.py:33] Request chatcmpl-1 details: prompt: 'x', prompt_token_ids: [5], y\n"
        f"DEBUG Request N/A JSON body: {json.dumps({'prompt': 'a'})}\n"
    )
    chat, text = cases_of(tmp_path, bodies, "vllm_log")
    assert (chat.id, list(chat.messages), text.id, text.prompt) == ("w/chatcmpl-1", [USER], "w/4", "a")
    details = (
        "INFO Received request cmpl-1: prompt: 'it\\'s', params: SamplingParams(n=1), prompt_token_ids: [3, 4], x.\n"
        'DEBUG Request cmpl-2 details: prompt: "it\'s", prompt_token_ids: None, prompt_embeds shape: None.\n'
    )
    ids, prompt = cases_of(tmp_path, details, "vllm_log")
    assert (ids.tokens, prompt.prompt) == ((3, 4), "it's")
    cut = f"INFO Request r JSON body: {json.dumps(BODY)[:20]}"
    assert "traffic.txt:1: " in (message := fault(tmp_path, cut, "vllm_log"))
    assert "bad JSON" in message
    assert "no line has a request; start vllm serve with" in fault(tmp_path, "INFO nothing\n", "vllm_log")


def test_a_wrong_shape_is_told_with_its_line_and_what_the_file_looks_like(tmp_path):
    samples = {
        "chat": lines({"messages": [USER]}),
        "lm_eval": lines({"doc_id": 0, "arguments": {"gen_args_0": {"arg_0": "x"}}, "resps": []}),
        "openai_batch": lines({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY}),
        "csv": "id,prompt\n1,x\n",
        "vllm_log": f"DEBUG Request r JSON body: {json.dumps(BODY)}\n",
    }
    with every_case() as case:
        for true, content in samples.items():
            assert likely_format(content.encode()) == true
            for form in samples:
                with case(f"{true} read as {form}"):
                    if form == true:
                        assert len(cases_of(tmp_path, content, form)) == 1
                    else:
                        message = fault(tmp_path, content, form)
                        assert message.endswith(f"the file looks like format: {true}")
                        assert "traffic.txt:" in message
        with case("output of a batch"):
            assert "name the file of its input" in fault(tmp_path, lines({"response": {}, "body": {}}), "openai_batch")
        with case("domain"):
            message = fault(tmp_path, samples["chat"], "chat", columns={"domain": "meta.kind"})
            assert 'traffic.txt:1: no column "meta.kind" for domain; there: "messages"' in message
        with case("not JSON"):
            assert "traffic.txt:2: column 1: bad JSON" in fault(tmp_path, samples["chat"] + "\n}", "chat")


def test_a_prompt_file_of_another_tool_is_told_how_to_name_it(tmp_path):
    with every_case() as case:
        for form, content in (
            ("chat", lines({"conversations": [{"from": "human", "value": "Hi."}]})),
            ("openai_batch", lines({"custom_id": "1", "body": BODY})),
            ("csv", "prompt,domain\nx,y\n"),
        ):
            with case(form):
                (tmp_path / "p.jsonl").write_text(content)
                suite_of(tmp_path, lines({"messages": [USER]}), "chat")
                text = (tmp_path / "suite.yaml").read_text()
                document = json.loads(text)
                document["workloads"] = [{"name": "w", "prompts": "p.jsonl"}]
                (tmp_path / "suite.yaml").write_text(json.dumps(document))
                with pytest.raises(UserError, match=f'source: {{file: "p.jsonl", format: {form}}}'):
                    load_suite(tmp_path / "suite.yaml")


def test_a_workload_has_either_prompts_or_a_source(tmp_path):
    with every_case() as case:
        for name, entry in (
            ("neither", {"name": "w"}),
            ("both", {"name": "w", "prompts": "t", "source": {"file": "traffic.txt", "format": "chat"}}),
        ):
            with case(name):
                suite_of(tmp_path, lines({"messages": [USER]}), "chat")
                document = json.loads((tmp_path / "suite.yaml").read_text())
                document["workloads"] = [entry]
                (tmp_path / "suite.yaml").write_text(json.dumps(document))
                with pytest.raises(UserError, match="either prompts, a prompt file, or source"):
                    load_suite(tmp_path / "suite.yaml")


def test_a_sample_has_its_size_keeps_the_order_and_is_fair(tmp_path):
    records = lines(*({"messages": [said("user", str(number))]} for number in range(20)))
    drawn = Counter()
    for seed in range(60):
        cases = cases_of(tmp_path, records, "chat", sample={"size": 5, "seed": seed})
        numbers = [int(case.id.partition("/")[2]) for case in cases]
        assert len(numbers) == 5
        assert numbers == sorted(numbers)
        drawn.update(numbers)
    again = cases_of(tmp_path, records, "chat", sample={"size": 5, "seed": 59})
    assert again == cases
    # 60 draws of 5 in 20: 15 each, standard deviation 3.4
    assert set(drawn) == set(range(1, 21))
    assert max(drawn.values()) <= 29
    assert len(cases_of(tmp_path, records, "chat", sample={"size": 50})) == 20


@pytest.mark.medium
def test_personal_data_is_masked(tmp_path):
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    secret = "Write to ann@example.org or call 212-555-0143."
    content = lines({"messages": [said("system", "Card 4111 1111 1111 1111"), said("user", secret)]})
    (masked,) = cases_of(tmp_path, content, "chat", mask=True)
    assert [message["content"] for message in masked.messages] == [
        "Card <CREDIT_CARD>",
        "Write to <EMAIL_ADDRESS> or call <PHONE_NUMBER>.",
    ]
    (mail,) = cases_of(tmp_path, content, "chat", mask=["EMAIL_ADDRESS"])
    assert mail.messages[1]["content"] == secret.replace("ann@example.org", "<EMAIL_ADDRESS>")
    assert "mask: filter presidio: no recogniser of SHOE_SIZE" in fault(tmp_path, content, "chat", mask=["SHOE_SIZE"])
    ids = lines({"body": {"prompt": [1, 2]}})
    assert "traffic.txt:1: token ids cannot be masked" in fault(tmp_path, ids, "openai_batch", mask=True)
