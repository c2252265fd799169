"""Filter `classifier`: a sequence classifier in the style of Llama Guard, sentence by sentence.

The model is a folder in the format of transformers, loaded without network, in float32. A sentence is judged alone and
in a batch of one, so that its scores depend on nothing else. A sentence whose score for one of the `labels` reaches
`threshold` is marked as a whole.
"""

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from engine.core.errors import InvalidRequest, ModelError
from engine.models.files.folder import ModelFolder, bundled_folder, model_digest, open_folder, tokenizer_digest
from engine.models.files.transformers_loader import load_whole
from engine.models.files.verified_files import pinned
from engine.models.loading import load_tokenizer
from engine.stream.interface import FilterSpec, Mark, filter_spec
from engine.stream.segments import SegmentRules

THRESHOLD: Final = 0.5
BUNDLED: Final = "bundled:"
KEYS: Final = ("labels", "model", "threshold")


def build(spec: FilterSpec) -> SegmentRules:
    """The model of a specification.

    Rules: `model`, a folder or a bundled one; `labels`, those that are marked; `threshold`, the least score.

    Raises:
        InvalidRequest: unknown rules, a folder without a sequence classifier, or a label that it does not have.
    """
    rules = spec.given(*KEYS)
    source, wanted, threshold = rules.get("model"), rules.get("labels"), rules.get("threshold", THRESHOLD)
    if not isinstance(source, str):
        raise InvalidRequest("filter classifier needs model: bundled:guard, or a folder with a sequence classifier")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise InvalidRequest(f"filter classifier: threshold must be above 0 and at most 1, not {threshold!r}")
    try:
        path = bundled_folder(source) if source.startswith(BUNDLED) else Path(source)
        with pinned(open_folder(path, source)) as folder:
            tokenizer = load_tokenizer(folder)
            network = None if tokenizer is None else _network(folder)
    except ModelError as error:
        raise InvalidRequest(f"filter classifier: {error}") from error
    if tokenizer is None or network is None:
        raise InvalidRequest(f"filter classifier: {source} has no tokenizer; add tokenizer.json to the folder")
    labels = _labels(source, network.config.id2label, wanted)
    digests = {"model": model_digest(folder.files), "tokenizer": tokenizer_digest(folder.files)}
    identity = filter_spec(spec.kind, spec.action, spec.side, {**rules, **digests})

    def marks(text: str) -> Iterator[Mark]:
        """The whole segment, once for each label that it reaches."""
        if not text.strip():
            return
        with torch.inference_mode():
            scores = network(**tokenizer(text, return_tensors="pt", truncation=True)).logits[0].softmax(-1)
        for index, label in labels.items():
            if float(scores[index]) >= float(threshold):
                yield Mark(0, len(text), label)

    return SegmentRules(identity.facts(importlib.metadata.version("transformers")), marks)


def _network(folder: ModelFolder) -> Any:
    from transformers import AutoModelForSequenceClassification

    return load_whole(folder, AutoModelForSequenceClassification, torch.float32, "sequence classifier").eval()


def _labels(source: str, known: Mapping[int, str], wanted: Any) -> Mapping[int, str]:
    if not isinstance(wanted, list) or not wanted:
        raise InvalidRequest(f"filter classifier needs labels: a list of those to mark, of {', '.join(known.values())}")
    strange = [name for name in wanted if name not in known.values()]
    if strange:
        raise InvalidRequest(
            f"filter classifier: {source} has no label {strange[0]}; it has {', '.join(known.values())}"
        )
    return {int(index): label for index, label in known.items() if label in wanted}
