from __future__ import annotations

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke


@pytest.mark.medium
def test_the_bill_is_valid_and_has_the_digests(tmp_path):
    url = stored_run(tmp_path)
    result = invoke("bom", "latest", "--store", url)
    assert result.exit_code == 0, result.output
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(result.stdout) is None
    document = json.loads(result.stdout)
    models = {part["bom-ref"]: part for part in document["components"] if "hashes" in part}
    assert {"target", "draft", "tokenizer"} <= {name.partition("/")[0] for name in models}
    assert len(document["declarations"]["claims"]) == 3
    properties = {item["name"]: item["value"] for item in document["metadata"]["properties"]}
    assert (properties["specaudit:engine/spec:drafted"], properties["specaudit:engine/spec:accepted"]) == ("10", "5")
    assert invoke("bom", "latest", "--store", url).stdout == result.stdout
