"""A server's counters from its page in Prometheus' text format, before and after: speculation, requests, latencies.

`by_model` reads the names of vLLM, llama.cpp, TensorRT-LLM and SGLang; `audit serve` uses vLLM's. Samples of one model,
over engines and ranks, are added. SGLang counts generated tokens and calls of its target instead of drafted and
accepted tokens: a call emits what it accepts and one more, and a request's first token comes without a call.

`counters` reads every sample of speculation of the whole server, including other clients' requests.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

K = TypeVar("K", bound=Hashable)
SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? +([^ ]+)(?: +-?[0-9]+)?")
LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)" *,? *')
DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
POSITIONS: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
SPELLED: Final[Mapping[str, str]] = {
    **{
        name.replace("vllm:", prefix): key
        for prefix in ("vllm:", "llamacpp:", "trtllm_")
        for name, key in ((DRAFTS, "drafts"), (DRAFTED, "drafted"), (ACCEPTED, "accepted"))
    },
    "sglang:spec_verify_calls_total": "drafts",
    "sglang:generation_tokens_total": "generated",
    "vllm:request_success_total": "requests",
    "trtllm_request_success_total": "requests",
    "sglang:num_requests_total": "requests",
    "sglang:num_aborted_requests_total": "errors",
}
"""The counter of each name."""
LATENCIES: Final = frozenset(("vllm:e2e_request_latency_seconds_bucket", "sglang:e2e_request_latency_seconds_bucket"))
ACTIVE: Final = frozenset(
    (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "sglang:num_running_reqs", "sglang:num_queue_reqs"),
        *("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    )
)
OF_SGLANG: Final = {"sglang:spec_accept_length": "length", "sglang:spec_num_draft_tokens": "verified"}
"""Its gauges: tokens that a call emits, and tokens that it verifies."""
CONFIGURED: Final = "trtllm_speculative_config_info"
"""TensorRT-LLM's settings of drafts, as labels."""
MODEL_CONFIGURED: Final = "trtllm_model_config_info"
"""A sample of the pages that would have those settings."""
SETTLE: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each further look at counters that do not have the last answer yet."""
STARTED: Final = "process_start_time_seconds"
FAILED: Final = frozenset(("abort", "error"))
"""Reasons of vLLM's finished requests that are failures."""
MOST_MODELS: Final = 64
"""The most models, or values of a label, of one page."""
OWN_LABELS: Final = ("model_name", "finished_reason", "position", "le")
"""Labels that the counters themselves need."""
MOST_COUNT: Final = 2.0**53
LONGEST_NAME: Final = 500
MOST_LINE: Final = 10_000
MOST_NAMES: Final = 10_000
ABOUT: Final = re.compile(r"spec_|_spec|draft|accept")
"""Name patterns of speculation counters."""


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """The counters of one model since the server started; None where the page lacks them.

    Attributes:
        positions: accepted tokens by place in the draft, from 0.
        latencies: requests that took at most that many seconds, by the bucket's end as the page writes it.
        length: SGLang's own acceptance length.
        unit: the length of its drafts.
        active: requests in progress at the moment of the page, those that wait included.
        started: when the process started, in seconds of its clock.
    """

    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    positions: Mapping[int, float] = field(default_factory=dict)
    requests: float | None = None
    errors: float | None = None
    latencies: Mapping[str, float] = field(default_factory=dict)
    length: float | None = None
    unit: int | None = None
    active: float | None = None
    started: float | None = None

    @property
    def counts_drafts(self) -> bool:
        """True if drafted and accepted tokens are counted."""
        return self.drafted is not None and self.accepted is not None

    @property
    def draft_length(self) -> int | None:
        """The most tokens of a draft: the number of positions that the server counts."""
        return max(self.positions) + 1 if self.positions else self.unit

    def to_json(self) -> str:
        """The counters as JSON text."""
        return json.dumps(asdict(self), separators=(",", ":"))


def counters_of(document: Any) -> ServerCounters:
    """The counters of `ServerCounters.to_json`, as a parsed document."""
    positions = {int(place): value for place, value in document["positions"].items()}
    return ServerCounters(**{**document, "positions": positions})


def by_model(page: str, draft: float | None = None) -> dict[str, ServerCounters]:
    """The counters of each model that the page names; empty if it has none of the known names.

    `draft` is the length of SGLang's drafts where the page does not tell it.
    Lines that are not samples, and values that are no finite count, are skipped.
    """
    return _grouped(page, lambda labels: labels.get("model_name", ""), draft)


def by_label(page: str, name: str, draft: float | None = None) -> dict[tuple[str, str], ServerCounters]:
    """As `by_model`, by model and value of another label; samples without the label are left out."""
    return _grouped(
        page, lambda labels: (labels.get("model_name", ""), labels[name]) if name in labels else None, draft
    )


def _grouped(page: str, key: Callable[[Mapping[str, str]], K | None], draft: float | None) -> dict[K, ServerCounters]:
    made: dict[K, dict[str, Any]] = {}
    started = None
    for name, labels, value in _samples(page):
        group = key(labels)
        if name == STARTED:
            started = value
        elif group is not None and (group in made or len(made) < MOST_MODELS):
            _take(made, group, name, labels, value)
    # a gauge alone counts nothing
    counted = {group: values for group, values in made.items() if values.keys() - {"active", "generated"}}
    return {group: ServerCounters(**_counted(values, draft), started=started) for group, values in counted.items()}


def _counted(values: dict[str, Any], draft: float | None) -> dict[str, Any]:
    """The counters with SGLang's drafted and accepted tokens, if its page or `draft` tells the length of its drafts."""
    generated, verified = values.pop("generated", None), values.pop("verified", None)
    calls = values.get("drafts")
    if generated is None or calls is None or "drafted" in values:
        return values
    # one of the tokens that a call verifies is no draft
    told = verified - 1 if verified else draft
    accepted = generated - calls - values.get("requests", 0.0)
    if told and accepted >= 0:
        values |= {"drafted": calls * told, "accepted": accepted, "unit": int(told)}
    return values


def _take(made: dict[K, dict[str, Any]], group: K, name: str, labels: Mapping[str, str], value: float) -> None:
    if name in SPELLED:
        _add(made.setdefault(group, {}), SPELLED[name], value)
        if labels.get("finished_reason") in FAILED:
            _add(made[group], "errors", value)
        elif "finished_reason" in labels:
            _add(made[group], "errors", 0.0)
    elif name in (POSITIONS, of_llama(POSITIONS)) and re.fullmatch(r"[0-9]{1,3}", labels.get("position", "")):
        _add(made.setdefault(group, {}).setdefault("positions", {}), int(labels["position"]), value)
    elif name in LATENCIES and "le" in labels:
        _add(made.setdefault(group, {}).setdefault("latencies", {}), labels["le"], value)
    elif name in ACTIVE:
        _add(made.setdefault(group, {}), "active", value)
    elif name in OF_SGLANG:
        made.setdefault(group, {})[OF_SGLANG[name]] = value


def _add(values: dict[Any, float], key: Any, value: float) -> None:
    values[key] = values.get(key, 0.0) + value


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for count, line in enumerate(page.splitlines()):
        if count > 10 * MOST_NAMES:
            return
        if line.startswith("#") or len(line) > MOST_LINE:
            continue
        match = SAMPLE.fullmatch(line.strip())
        value = math.nan if match is None else _count(match[3])
        if match is not None and 0.0 <= value <= MOST_COUNT:
            yield match[1], _labels(match[2] or ""), value


def _labels(text: str) -> dict[str, str]:
    """The labels up to the first that is none: a search for the next would take the square of a long line."""
    labels, rest, at = dict[str, str](), text.lstrip(), 0
    while (match := LABEL.match(rest, at)) is not None:
        labels[match[1]] = _unescaped(match[2])[:LONGEST_NAME]
        at = match.end()
    return labels


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def _count(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def latency(grown: Mapping[str, float], share: float) -> float | None:
    """The `share` quantile of a histogram's growth in seconds, linear in its bucket as PromQL's histogram_quantile.

    None without requests. In the last bucket, which has no end, the answer is the end before it.
    """
    ends = sorted((math.inf if end == "+Inf" else _count(end), count) for end, count in grown.items())
    ends = [(end, count) for end, count in ends if not math.isnan(end)]
    if not ends or ends[-1][1] <= 0:
        return None
    rank, below, before = share * ends[-1][1], 0.0, 0.0
    for end, count in ends:
        if count >= rank and count > before:
            return below if math.isinf(end) else below + (end - below) * (rank - before) / (count - before)
        below, before = (below if math.isinf(end) else end), count
    return below


def of_llama(name: str) -> str:
    """llama.cpp's name of one of vLLM's counters."""
    return name.replace("vllm:", "llamacpp:")


def counters(text: str) -> dict[str, float]:
    """The speculation samples, summed over their labels; a sample with a position keeps it as `NAME[POSITION]`.

    Counters are summed; a gauge (no `_total`) keeps its largest value.
    """
    mapping: dict[str, float] = {}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line.strip()) if len(line) <= MOST_LINE and len(mapping) < MOST_NAMES else None
        if match is None or not ABOUT.search(match[1]) or match[1].endswith("_created"):
            continue
        value = _count(match[3])
        place = re.search(r'position="([0-9]+)"', match[2] or "")
        name = f"{match[1]}[{place[1]}]" if place else match[1]
        if math.isfinite(value):
            mapping[name] = mapping.get(name, 0.0) + value if "_total" in name else max(mapping.get(name, value), value)
    return mapping


def speculates(page: str) -> bool | None:
    """True if the server drafts: vLLM has these counters exactly if it does, and TensorRT-LLM names its settings; None
    for other servers' pages.
    """
    if MODEL_CONFIGURED in page:
        return CONFIGURED in page
    return DRAFTS in counters(page) if "vllm:" in page else None


def labels_of(page: str, name: str) -> Mapping[str, str]:
    """The labels of the first sample of that name; empty without one."""
    return next((labels for other, labels, _ in _samples(page) if other == name), {})


def finished(before: str, after: str) -> dict[str, int]:
    """The growth of finished requests between two pages, over all models; empty where they count none."""
    ends = [[item.requests for item in by_model(page).values()] for page in (before, after)]
    if not all(ends) or any(count is None for counts in ends for count in counts):
        return {}
    old, new = (sum(count or 0.0 for count in counts) for counts in ends)
    return {"finished": round(new - old)}


def change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """The change between two readings: growth of counters, current values of gauges."""
    grown = {
        name: value - before.get(name, 0.0) if "_total" in name else value for name, value in sorted(after.items())
    }
    known = ("drafted", "accepted")
    named = {SPELLED[name]: int(value) for name, value in grown.items() if SPELLED.get(name) in known}
    restarted = any(value < 0 for value in grown.values())
    return {**named, "samples": grown, **({"restarted": True} if restarted else {})}
