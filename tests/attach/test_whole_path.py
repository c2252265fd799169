"""From a run to a deployment with the real tools; runs in `make test-attach`.

A run is made, signed and attached to reports of lm-eval, Inspect, a model card and MLflow; all verify, and the gate
allows and signs. Then the engine breaks: the gate blocks, and the old decision is none for the new engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attach.transcripts import run

pytestmark = pytest.mark.attach

MODELS = "--subject target=models/target --subject draft=models/draft"
GATE = f"audit gate latest --policy policy.yaml {MODELS} --key audit.key"
EVALUATIONS = """\
lm_eval run --model hf --model_args pretrained=models/target,dtype=float32 --device cpu --tasks arithmetic \
  --include_path . --output_path out --log_samples
mv out/*/results_*.json results_arithmetic.json
mv out/*/samples_*.jsonl samples_arithmetic.jsonl
inspect eval arithmetic.py --model hf/models/target -M model_path=models/target -M device=cpu -M do_sample=false \
  --max-tokens 16 --log-dir logs --display none
mv logs/*.eval logs/arithmetic.eval
python - <<'END'
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
experiment = mlflow.create_experiment("chat", artifact_location="artifacts")
with mlflow.start_run(experiment_id=experiment) as run:
    mlflow.log_params({"gamma": 4})
    mlflow.log_metric("accuracy", 0.5)
open("run-id", "w").write(run.info.run_id)
END
"""
REPORTS = (
    "results_arithmetic.json",
    "samples_arithmetic.jsonl",
    "logs/arithmetic.eval",
    "card.md",
    '"mlflow:mlflow.db#$(cat run-id)"',
)
IN_PLACE = ("results_arithmetic.json", "logs/arithmetic.eval", "card.md")


def fails(folder: Path, command: str) -> str:
    """What a command says that has to exit with 1."""
    return run(folder, f'{command} 2>&1 && exit 9 || [ "$?" = 1 ]')


def signed_policy(folder: Path) -> None:
    """The policy, with the demand that this key signed the log."""
    path, key = folder / "policy.yaml", (folder / "audit.key.pub").read_text().strip()
    policy = path.read_text().replace("evidence: {", "evidence: {signed: true, ")
    path.write_text(f'{policy}keys: {{trusted: {{ci: "{key}"}}}}\n')


def engines(folder: Path) -> dict[str, str]:
    """The engine configurations of the newest run, as the gate names them."""
    asked = "audit gate latest --policy policy.yaml --no-subject --format json --warn-only"
    decision: dict[str, dict[str, str]] = json.loads(run(folder, asked))
    return decision["engines"]


def broken(folder: Path) -> None:
    """A new version of the engine: longer drafts, and an acceptance that accepts everything."""
    suite = (folder / "suite.yaml").read_text()
    head, _, sampled = suite.partition("  - name: sampled\n")
    sampled = sampled.replace("gamma: 4", "gamma: 5") + "    fault: accepts_everything\n"
    (folder / "suite.yaml").write_text(f"{head}  - name: sampled\n{sampled}")
    fails(folder, "audit run suite.yaml --results broken.json")


def test_from_a_run_to_a_deployment_and_back(deployment: Path) -> None:
    run(deployment, "audit keys init audit.key --name example.org/audit")
    signed_policy(deployment)
    run(deployment, "audit db checkpoint --key audit.key --out log.note")
    run(deployment, "audit attest latest --key audit.key --out statements")
    for statement in sorted((deployment / "statements").iterdir()):
        run(deployment, f"audit verify {statement} --key audit.key.pub --log-key audit.key.pub")
    run(deployment, EVALUATIONS)
    for report in REPORTS:
        run(deployment, f"audit attach latest {report} --key audit.key {'--in-place' if report in IN_PLACE else ''}")
        run(deployment, f"audit verify {report} --key audit.key.pub --store audit.db")

    run(deployment, f"{GATE} --checkpoint log.note --out allowed.json")
    old = engines(deployment)
    verify = f"audit verify allowed.json --key audit.key.pub {MODELS}"
    run(deployment, f"{verify} --subject engine/sampled=sha256:{old['sampled']}")

    broken(deployment)
    run(deployment, "audit db checkpoint --key audit.key --out broken.note")
    reasons = fails(deployment, f"{GATE} --checkpoint broken.note --out blocked.json")
    assert "block: replay: arm sampled: replay is fault" in reasons, reasons
    assert "FAILED" in fails(deployment, f"audit verify blocked.json --key audit.key.pub {MODELS}")
    new = engines(deployment)
    assert new["sampled"] != old["sampled"]
    answer = fails(deployment, f"{verify} --subject engine/sampled=sha256:{new['sampled']}")
    assert f"engine/sampled sha256:{old['sampled']}, not sha256:{new['sampled']}" in answer
    run(deployment, f"{verify} --subject engine/sampled=sha256:{old['sampled']}")
