"""The pages say what there is, and nothing that is not: coverage, links, examples."""

import dataclasses
import json
import re
import sys
import types
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import schemas
from audit import checks
from audit.checks.base.interface import EVERYTHING, evaluate
from audit.checks.battery import standard_checks
from audit.cli import COMMANDS, main
from audit.evidence.accounts import ArmOutline
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from audit.gate.policy import load_policy
from audit.suite.loader import load_suite
from audit.text.documents import read_yaml
from audit.text.schema_errors import check_document
from docs.tools import fault_page
from docs.tools.cli_page import WIDTH, page
from docs.tools.site_pages import ROOT_PAGES
from engine import backends, faults, proposers, verify
from engine.backends.engine_spec import Backend, EngineSpec, ModelSource
from engine.backends.interface import Engine
from engine.core.options import ScalarOption
from engine.core.registry import FILTERS, SERVICE_FAULTS, resolve
from engine.core.types import FinishReason, Protocol, QKind, RecordLevel, Role, SamplingParams
from engine.proposers.options import OPTIONS
from engine.record.effective import Effective
from engine.record.trace import Trace, TraceHeader
from engine.sampling.rng import Purpose
from engine.stream.interface import Mark, filter_spec
from engine.stream.loading import load_filter
from engine.train import recipe
from tests.audit.checks.simulator import GREEDY, Setup, arm, record, world
from tests.bench.faults import declared, known_rows
from tests.engine import build
from tests.engine.stream.texts import judged, pieces
from tests.support.cases import every_case

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKED = [ROOT / "README.md", *(ROOT / name for name in ROOT_PAGES), *PAGES]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TERMS = """\
target, draft model, proposer, gamma, proposal, step, position, p(x), q(x), verify, protocol, residual, chain, tree
one-hot q, soft q, sample-and-match, coupled draft, stream, scores, lossless, margin (of a row), margin (of a check)
token acceptance probability, draft acceptance rate, per-position acceptance, acceptance length, tokens per forward
alpha, rho, sigma, suite, workload, case, domain, arm, claim, check, finding, divergence, leak, trace, record root
evidence level, record level, effective configuration, fault (of an arm), policy, gate, subject, attachment"""


def name_of(path):
    return str(path.relative_to(ROOT))


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


def prose(path):
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def blocks(path, language):
    return [match[3] for match in FENCE.finditer(path.read_text(encoding="utf-8")) if match[2] == language]


def words_in_code(text):
    return {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", span)}


def section(text, heading):
    level = "#" * (len(heading) - len(heading.lstrip("#")))
    return re.split(rf"^#{{1,{len(level)}}} ", text.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def anchors(path):
    heads = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


REGISTERED = [
    *(("proposers", name) for name in proposers.REGISTRY),
    *(("backends", name) for name in backends.REGISTRY),
    *(("checks", name) for name in checks.REGISTRY),
]
SECTIONS = {
    "filters.md": tuple(FILTERS),
    "verifiers/lossless.md": tuple(name for name in verify.REGISTRY if verify.load(name).facts.lossless),
    "verifiers/lossy.md": tuple(name for name in verify.REGISTRY if not verify.load(name).facts.lossless),
}


def site_pages(entries):
    """The pages that a navigation names, in its order."""
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from [value] if isinstance(value, str) else site_pages(value)


# coverage


def test_everything_registered_has_a_page_that_says_what_it_cannot_do():
    with every_case() as case:
        for folder, name in REGISTERED:
            with case(f"{folder}/{name}"):
                text = (DOCS / folder / f"{name}.md").read_text(encoding="utf-8")
                assert text.startswith(f"# {name}\n")
                assert re.search(r"^## (Limits|What it cannot see)$", text, re.MULTILINE)


def test_everything_registered_in_a_family_has_a_section_that_says_what_it_cannot_do():
    for page_name, names in SECTIONS.items():
        text = text_of(page_name)
        assert set(re.findall(r"^## (.+)$", FENCE.sub("", text), re.MULTILINE)) == set(names)
        assert [
            name for name in names if not re.search(r"^### Limits$", section(text, f"## {name}"), re.MULTILINE)
        ] == []


def test_the_page_of_faults_and_situations_is_the_catalogue(tmp_path):
    text = text_of("faults/situations.md")
    cells = fault_page.known_cells(text)
    assert text == fault_page.page(cells), "run: make docs"
    out = tmp_path / "page.md"
    fault_page.write([str(out)], standalone_mode=False)
    assert out.read_text(encoding="utf-8") == text
    assert set(cells) == set(faults.REGISTRY)
    unmeasured = [name for name, row in cells.items() if row == fault_page.Measured()]
    assert unmeasured == [], "run: audit selftest --default-suite, then docs.tools.fault_page --measured"
    named = {word for row in cells.values() if row.caught for word in row.caught_by.rpartition(" (")[0].split(", ")}
    every = ArmOutline(EVERYTHING, 4, greedy=False, calls=True, structured=True, streamed=True, filtered=True)
    assert named <= set(standard_checks(every))


def test_no_page_describes_what_is_not_registered():
    folders = ("proposers", "backends", "checks")
    pages = {(folder, path.stem) for folder in folders for path in (DOCS / folder).glob("*.md")}
    assert pages == set(REGISTERED)


def test_the_navigation_names_every_page_once():
    named = list(site_pages(read_yaml(ROOT / "mkdocs.yml").data["nav"]))
    assert sorted(named) == sorted([*ROOT_PAGES, *(str(path.relative_to(DOCS)) for path in PAGES)])


def test_every_check_answers_a_question_or_a_symptom():
    linked = set(re.findall(r"\(checks/(\w+)\.md\)", text_of("which-check.md")))
    assert linked == set(checks.REGISTRY)


def test_the_tower_has_every_room_in_the_layers_order():
    text = text_of("where-things-go.md")
    (engine,) = re.findall(r"^\* `engine/`: ([^.]+)\.", text, re.MULTILINE)
    (audit,) = re.findall(r"^\* `audit/`: ([^.]+)\.", text, re.MULTILINE)
    floors = re.findall(r"<text[^>]*>((?:<tspan[^>]*>\w+</tspan>)+)</text>", text_of("pictures/tower.svg"))
    rooms = [room for floor in reversed(floors) for room in re.findall(r">(\w+)<", floor)]
    assert rooms == re.findall(r"\w+", f"{engine}, {audit}")


def test_the_table_of_faults_is_the_catalogue():
    rows = known_rows(text_of("faults/index.md"))
    assert list(rows) == list(faults.REGISTRY)
    for name, row in rows.items():
        said = declared(faults.load(name))
        assert row.startswith(said), f"{name}: run python -m tests.bench.faults --only {name}"
        seen = row.removeprefix(said).strip(" |")
        assert seen == "none of these" or set(seen.split(", ")) <= set(checks.REGISTRY)


def test_the_table_of_faults_of_a_service_is_the_catalogue():
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text_of("faults/index.md"), re.MULTILINE
    )
    faults = {name: resolve(SERVICE_FAULTS, name, "fault") for name in SERVICE_FAULTS}
    stated = [(name, fault.breaks, fault.needs or "nothing", fault.upstream) for name, fault in faults.items()]
    assert [row for row in rows if row[0] in faults] == stated


def test_a_checks_page_names_its_parameters_with_their_defaults():
    with every_case() as case:
        for name in checks.REGISTRY:
            with case(name):
                check = checks.load(name)
                text = text_of(f"checks/{name}.md")
                assert f"Claim: {check.claim}" in text
                rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section(text, "## Parameters"), re.MULTILINE))
                assert {key: json.loads(value) for key, value in rows.items()} == check.defaults


def test_evidence_lists_the_checks_with_what_they_need():
    found = [checks.load(name) for name in checks.REGISTRY]
    for check in found:
        row = f"| [{check.name}](checks/{check.name}.md) | {check.claim} | {check.needs.name} |"
        assert row in text_of("evidence.md")


def test_every_field_of_a_trace_is_described():
    text = section(text_of("evidence.md"), "## Trace format")
    fields = {each.name for each in (*dataclasses.fields(Trace), *dataclasses.fields(TraceHeader))} - {"header"}
    assert fields - words_in_code(text) == set()


def test_the_numbers_of_the_trace_format_are_those_in_the_code():
    text = text_of("evidence.md")
    listed = {
        "`q_kind`": (QKind, {"none": "none", "one_hot": "one-hot", "full": "full"}),
        "`role`": (Role, {each.name.lower(): each.name.lower() for each in Role}),
    }
    for column, (kind, names) in listed.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {column} "))
        assert ", ".join(f"{each.value} {names[each.name.lower()]}" for each in kind) in row
    assert ", ".join(f"{each.name.lower()} {each.value}" for each in Purpose) in text


def test_evidence_explains_every_word_of_its_levels_and_verdicts():
    text = text_of("evidence.md")
    words = [*(each.name for each in Level), *(each.value for kind in (RecordLevel, Verdict) for each in kind)]
    assert [word for word in words if not re.search(rf"^\| `?{word}`? \|", text, re.MULTILINE)] == []


def test_the_native_page_gives_the_evidence_level_of_each_record_level():
    from engine.backends.native import LEVELS

    for level, evidence in LEVELS.items():
        assert f"| `{level}` | L{evidence.level} |" in text_of("backends/native.md")


def test_the_native_page_lists_the_effective_configuration():
    backend = backends.open_backend("scripted", {"target": ModelSource("scripted:1")})
    keys = set(backend.arm(EngineSpec(Protocol.GUMBEL)).effective_config().keys)
    table = section(text_of("backends/native.md"), "## Effective configuration")
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^(\|[^|]+\|)", table, re.MULTILINE)))) == keys


def test_add_a_backend_lists_what_has_to_be_written():
    methods = {name for protocol in (Backend, Engine) for name in vars(protocol) if not name.startswith("_")}
    listed = re.findall(r"^\| `(\w+)\(", text_of("how-to/add-a-backend.md"), re.MULTILINE)
    assert methods - set(listed) == set()


def test_every_sampling_parameter_is_described():
    schema = schemas.load("suite")
    sampling = schema["$defs"]["sampling"]["properties"]
    # the seed is the suite's, so that no two arms can differ in it
    described = {"seed": schema["properties"]["seed"]} | sampling
    names = {each.name for each in dataclasses.fields(SamplingParams)}
    assert names == set(described)
    assert [name for name in names if len(described[name].get("description", "")) < 10] == []


def test_the_glossary_has_the_words_we_use():
    terms = set()
    for first in re.findall(r"^\| ([^|]+) \|", text_of("glossary.md"), re.MULTILINE):
        terms.update(word.strip() for word in first.split(","))
    roles = {f"{each.name.lower()} token" for each in Role}
    words = {*roles, *(each.value for each in ArmKind), *(each.value for each in Verdict), *re.split(r", |\n", TERMS)}
    assert words - terms == set()


def test_the_reference_family_is_described_as_its_recipe_is():
    text = text_of("reference-family.md")
    models = (recipe.TARGET_MODEL, recipe.DRAFT_MODEL, recipe.MEDIUM_MODEL, recipe.MEDIUM_DRAFT_MODEL)
    train, distil = recipe.TARGET_TRAINING, recipe.DRAFT_TRAINING
    trainings = (train, distil, recipe.MEDIUM_TRAINING, recipe.MEDIUM_DRAFT_TRAINING)
    corpus = recipe.CorpusRecipe()
    rows = (
        ("layers", *(each.layers for each in models)),
        ("hidden size", *(each.hidden for each in models)),
        ("attention heads / key-value heads", *(f"{each.heads} / {each.kv_heads}" for each in models)),
        ("feed-forward size", *(each.ffn for each in models)),
        ("context", *(each.context for each in models)),
        ("vocabulary", *(corpus.vocabulary for _ in models)),
        ("steps", *(each.steps for each in trainings)),
        ("batch", *(f"{each.rows} windows of {each.window} tokens" for each in trainings)),
        ("learning rate", *(each.learning_rate for each in trainings)),
    )
    absent = [row for row in rows if f"| {' | '.join(str(each) for each in row)} |" not in text]
    assert absent == []
    assert f"| {train.code_share} |" in text
    assert f"{corpus.dialogues:,} generated dialogues".replace(",", " ") in text
    assert f"{corpus.held_out_files} source files, and {corpus.held_out_dialogues} dialogues" in text
    assert f"{distil.distillation} KL(target" in text


# the command line


def test_the_command_page_is_what_the_commands_say_now():
    assert text_of("cli.md") == page(), "run: make docs"


def test_every_command_is_on_the_page_with_its_own_help():
    with every_case() as case:
        for name in COMMANDS:
            with case(name):
                result = CliRunner().invoke(main, [name, "--help"], prog_name="audit", terminal_width=WIDTH)
                assert result.exit_code == 0
                assert f"## audit {name}\n\n```text\n{result.stdout}```\n" in text_of("cli.md")


def test_the_page_is_written_by_its_module(tmp_path):
    from docs.tools.cli_page import write

    out = tmp_path / "cli.md"
    assert CliRunner().invoke(write, [str(out)]).exit_code == 0
    assert out.read_text(encoding="utf-8") == page()


def test_commands_in_the_pages_exist():
    shells = [(path, block) for path in LINKED for language in ("", "sh", "bash") for block in blocks(path, language)]
    lines = [(path, line) for path, block in shells for line in block.splitlines() if line.split()[:1] == ["audit"]]
    assert lines
    named = [(path, line, line.split()[1]) for path, line in lines]
    unknown = [f"{name_of(path)}: {line}" for path, line, word in named if word not in COMMANDS and word[0] != "-"]
    assert unknown == []


# links and form


def broken(path, target):
    """What is wrong with a link."""
    name, _, anchor = target.partition("#")
    goal = (path.parent / name).resolve() if name else path
    if not goal.exists():
        return "no such file"
    return "no such heading" if anchor and anchor not in anchors(goal) else ""


def test_links_resolve():
    links = [(path, target) for path in LINKED for target in LINK.findall(prose(path))]
    inside = [(path, target) for path, target in links if not re.match(r"[a-z]+:", target)]
    assert inside
    found = [f"{name_of(path)}: {target}: {broken(path, target)}" for path, target in inside if broken(path, target)]
    assert found == []


def test_pages_are_plain_ascii_and_name_files_that_exist():
    strange, invented = [], []
    example = re.compile(r"NAME|\*|reference/")
    for path in LINKED:
        text = path.read_text(encoding="utf-8")
        strange += [f"{name_of(path)}: {char!r}" for char in sorted(set(text)) if not char.isascii()]
        for name in re.findall(r"`((?:audit|engine|schemas|migrations|suites|tests|docs)/[\w./*-]+)`", text):
            if not (example.search(name) or (ROOT / name).exists()):
                invented.append(f"{name_of(path)}: {name}")
    assert (strange, invented) == ([], [])


# examples


def examples(language, marker):
    """The blocks of all pages that hold a line which the marker matches, by page and number."""
    found = [
        (path, each) for path in LINKED for each in blocks(path, language) if re.search(marker, each, re.MULTILINE)
    ]
    return {f"{name_of(path)}-{i}": each for i, (path, each) in enumerate(found)}


def test_example_suites_follow_the_schema(tmp_path):
    path, schema = tmp_path / "suite.yaml", schemas.load("suite")
    with every_case() as case:
        for name, text in examples("yaml", r"^workloads:").items():
            with case(name):
                path.write_text(text, encoding="utf-8")
                check_document(read_yaml(path), schema)


def test_example_policies_load(tmp_path):
    path = tmp_path / "policy.yaml"
    with every_case() as case:
        for name, text in examples("yaml", r"^require:").items():
            with case(name):
                # a digest in a page is shortened; any digest will do here
                path.write_text(text.replace("sha256:...", "sha256:" + "0" * 64), encoding="utf-8")
                assert load_policy(str(path))


def test_the_suite_for_your_own_pair_loads(tmp_path):
    (text,) = blocks(DOCS / "how-to" / "audit-your-own-pair.md", "yaml")
    for folder in ("my-target", "my-draft"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
    (tmp_path / "my-pair.yaml").write_text(text, encoding="utf-8")
    suite = load_suite(tmp_path / "my-pair.yaml")
    assert [each.name for each in suite.arms] == ["greedy", "rejection"]


def example_module(page_name, module, monkeypatch, number=0):
    made = types.ModuleType(module)
    monkeypatch.setitem(sys.modules, module, made)
    exec(compile(blocks(DOCS / "how-to" / page_name, "python")[number], page_name, "exec"), made.__dict__)
    return import_module(module)


@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.CHAIN, Protocol.GUMBEL])
@pytest.mark.parametrize(("number", "name", "options"), [(0, "Repeat", {"most": 2}), (1, "Unigram", {})])
def test_an_example_proposer_drafts_and_changes_no_token(number, name, options, protocol, monkeypatch):
    torch.set_num_threads(1)
    kind = name.lower()
    example_module("add-a-proposer.md", f"{kind}_example", monkeypatch, number)
    monkeypatch.setitem(proposers.REGISTRY, kind, f"{kind}_example:{name}Proposer")
    if options:
        monkeypatch.setitem(OPTIONS, kind, {"most": ScalarOption(4, low=1)})
    sampling = SamplingParams(temperature=0.0 if protocol is Protocol.GREEDY else 1.0, max_new_tokens=24, seed=5)
    wanted = build.requests(4, sampling)
    drafted = build.generate(build.Setup(kind, protocol, gamma=3, options=options), wanted)
    if protocol is not Protocol.CHAIN:  # the chain rule keeps the law, not the tokens
        plain = build.generate(build.Setup(None, protocol), wanted)
        assert {key: each.tokens for key, each in plain.items()} == {key: each.tokens for key, each in drafted.items()}
    traces = build.traces(drafted)
    records = tuple(record(each) for each in traces.values())
    result = evaluate(
        checks.load("replay"), Evidence(ArmRecord("example", ArmKind.CANDIDATE, Level.L4, Effective(), records)), {}
    )
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert max(int(np.max(trace.n_drafted)) for trace in traces.values()) == options.get("most", 3)
    assert sum(trace.n_accepted for trace in traces.values()) > 0


def test_the_example_filter_keeps_its_contract(monkeypatch):
    example_module("add-a-filter.md", "shouting_example", monkeypatch)
    monkeypatch.setitem(FILTERS, "shouting", "shouting_example:build")
    rules = load_filter(filter_spec("shouting", "redact", "output", {}))
    text = "NO. I said NO! Never, EVER. OK"
    wanted = [Mark(22, 26, "shouting")]
    assert judged(rules, [text]) == wanted
    assert all(judged(rules, pieces(text, seed)) == wanted for seed in range(5))


def test_the_example_check_reaches_each_verdict(monkeypatch):
    check = example_module("add-a-check.md", "ends_example", monkeypatch).CHECK
    healthy = arm(world(1), Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), 10)
    first = dataclasses.replace(healthy.requests[0], finish_reason=FinishReason.STOP)
    broken = dataclasses.replace(healthy, requests=(first, *healthy.requests[1:]))
    few = dataclasses.replace(healthy, requests=healthy.requests[:3])
    found = [
        evaluate(check, Evidence(healthy, healthy), {}).verdict,
        evaluate(check, Evidence(broken, healthy), {}).verdict,
        evaluate(check, Evidence(few, healthy), {}).verdict,
        evaluate(check, Evidence(healthy), {}).verdict,
    ]
    assert found == [Verdict.CERTIFIED, Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.NOT_RUN]
