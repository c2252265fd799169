"""The Grafana dashboard of `audit watch`, built with Grafana's own types.

`python -m docs.tools.watch_dashboard FILE` writes it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef

MODELS = '{model_name=~"$model"}'
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
WIDTH, HEIGHT = 12, 8


@dataclass(frozen=True, slots=True)
class Curve:
    """One expression and the name of its lines."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of the dashboard."""

    title: str
    about: str
    unit: str
    curves: tuple[Curve, ...]


def _gauge(name: str) -> str:
    return f"specaudit_watch_{name}{MODELS}"


def _rate(name: str, by: str = "model_name") -> str:
    return f"sum by ({by}) (rate(vllm:{name}{MODELS}[$__rate_interval]))"


def _latency(share: float) -> str:
    buckets = _rate("e2e_request_latency_seconds_bucket", "model_name, le")
    return f"histogram_quantile({share}, {buckets})"


PANELS = (
    Panel(
        "Acceptance and its reference",
        "Accepted per drafted token in each reading of audit watch, and the rate below which it has fallen.",
        "percentunit",
        (Curve(_gauge("acceptance"), "{{model_name}}"), Curve(_gauge("reference"), "{{model_name}}: reference")),
    ),
    Panel(
        "Evidence of a fall",
        "Log of the detector's evidence; at the limit, audit watch alarms and starts anew.",
        "none",
        (Curve(_gauge("log_evidence"), "{{model_name}}"), Curve(_gauge("log_limit"), "{{model_name}}: limit")),
    ),
    Panel(
        "Alarms in a day",
        "Alarms of audit watch. On traffic that keeps the reference, about one in a hundred months is expected.",
        "none",
        (Curve(f"increase(specaudit_watch_alarms_total{MODELS}[1d])", "{{model_name}}"),),
    ),
    Panel(
        "Readings",
        "Seconds since the last reading, and 1 while the last reading is no evidence.",
        "s",
        (
            Curve(f"time() - {_gauge('last_reading_timestamp_seconds')}", "{{model_name}}: age"),
            Curve(_gauge("gap"), "{{model_name}}: gap"),
        ),
    ),
    Panel(
        "Acceptance of parts of the traffic",
        "Accepted per drafted token by label and in the canary's requests. These series are not tested.",
        "percentunit",
        (Curve(_gauge("part_acceptance"), "{{model_name}}: {{label}}"),),
    ),
    Panel(
        "Changed answers of the canary",
        "Answers that are not those that were seen first. Rounding changes some in batches with other requests.",
        "none",
        (Curve(_gauge("canary_changed"), "{{model_name}}: {{label}}"),),
    ),
    Panel(
        "Acceptance by the server's counters",
        "Accepted per drafted token, without a test: what the server counted in the interval.",
        "percentunit",
        (
            Curve(
                f"{_rate('spec_decode_num_accepted_tokens_total')} / {_rate('spec_decode_num_draft_tokens_total')}",
                "{{model_name}}",
            ),
        ),
    ),
    Panel(
        "Acceptance by place in the draft",
        "Share of the drafts whose token at the place was accepted.",
        "percentunit",
        (
            Curve(
                f"{_rate('spec_decode_num_accepted_tokens_per_pos_total', 'model_name, position')} "
                f"/ on (model_name) group_left {_rate('spec_decode_num_drafts_total')}",
                "{{model_name}}: {{position}}",
            ),
        ),
    ),
    Panel(
        "Acceptance length",
        "Tokens that a step with a draft yields.",
        "none",
        (
            Curve(
                f"1 + {_rate('spec_decode_num_accepted_tokens_total')} / {_rate('spec_decode_num_drafts_total')}",
                "{{model_name}}",
            ),
        ),
    ),
    Panel("Drafts", "Drafts per second.", "ops", (Curve(_rate("spec_decode_num_drafts_total"), "{{model_name}}"),)),
    Panel(
        "Latency",
        "Of whole requests, linear within the server's buckets.",
        "s",
        tuple(Curve(_latency(share), f"{{{{model_name}}}}: P{share * 100:g}") for share in (0.5, 0.95, 0.99)),
    ),
    Panel(
        "Requests by how they ended",
        "Per second.",
        "reqps",
        (Curve(_rate("request_success_total", "model_name, finished_reason"), "{{model_name}}: {{finished_reason}}"),),
    ),
)


def built() -> str:
    """The dashboard as JSON text."""
    made = (
        dashboard.Dashboard("Speculative decoding, watched")
        .uid("specaudit-watch")
        .description("Written for the textfile of audit watch and the counters of vLLM and audit serve.")
        .tags(["specaudit"])
        .time("now-6h", "now")
        .refresh("1m")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus").label("Prometheus"))
        .with_variable(
            dashboard.QueryVariable("model")
            .label("Model")
            .datasource(SOURCE)
            .query("label_values(vllm:request_success_total, model_name)")
            .include_all(True)
            .multi(True)
            .all_value(".*")
        )
    )
    for panel in PANELS:
        made = made.with_panel(_drawn(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _drawn(panel: Panel) -> timeseries.Panel:
    drawn = timeseries.Panel().title(panel.title).description(panel.about).unit(panel.unit).datasource(SOURCE)
    drawn = drawn.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    for place, curve in enumerate(panel.curves):
        query = prometheus.Dataquery().expr(curve.expression).legend_format(curve.legend).range()
        drawn = drawn.with_target(query.ref_id(chr(ord("A") + place)))
    return drawn.span(WIDTH).height(HEIGHT)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(built())
