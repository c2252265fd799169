"""Filter `presidio`: personal data by the pattern recognisers of presidio-analyzer, sentence by sentence.

Patterns and checksums only: addresses of mail, cards, IBANs, telephone numbers and the like. The recognisers of names
need a language model, which this filter does not load; so nothing is downloaded. A sentence is judged without its
neighbours, so that context words in another sentence do not count.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.stream.interface import FilterSpec, Mark
from engine.stream.segments import SegmentRules

PACKAGE: Final = "presidio-analyzer"
ENTITIES: Final = ("CREDIT_CARD", "CRYPTO", "EMAIL_ADDRESS", "IBAN_CODE", "IP_ADDRESS", "PHONE_NUMBER", "URL", "US_SSN")
SCORE: Final = 0.4
"""Below it lie patterns without context, such as any nine digits."""
KEYS: Final = ("entities", "score")


def build(spec: FilterSpec) -> SegmentRules:
    """The recognisers of a specification: `entities`, a list of presidio's names, and `score`, the least one.

    Raises:
        InvalidRequest: unknown rules, or presidio is not installed.
    """
    rules = spec.given(*KEYS)
    entities, score = rules.get("entities", list(ENTITIES)), rules.get("score", SCORE)
    if not isinstance(entities, list) or not entities or not all(isinstance(entity, str) for entity in entities):
        raise InvalidRequest(f"filter presidio: entities must be a list of names, not {entities!r}")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise InvalidRequest(f"filter presidio: score must be a number from 0 to 1, not {score!r}")
    analyzer = _analyzer()
    known = {name for recognizer in analyzer.registry.recognizers for name in recognizer.supported_entities}
    strange = [name for name in entities if name not in known]
    if strange:
        raise InvalidRequest(f"filter presidio: no recogniser of {strange[0]}; there are: {', '.join(sorted(known))}")

    def marks(text: str) -> Iterator[Mark]:
        """Matches of the recognisers, in the text's order."""
        result = analyzer.analyze(text=text, language="en", entities=list(entities), score_threshold=float(score))
        for item in sorted(result, key=lambda one: (one.start, one.end, one.entity_type)):
            yield Mark(item.start, item.end, item.entity_type)

    return SegmentRules(spec.facts(importlib.metadata.version(PACKAGE)), marks)


@functools.lru_cache(maxsize=1)
def _analyzer() -> Any:
    """Presidio over a blank English pipeline; its default loads a language model from the network."""
    try:
        presidio: Any = importlib.import_module("presidio_analyzer")
        recognising: Any = importlib.import_module("presidio_analyzer.predefined_recognizers")
        engines: Any = importlib.import_module("presidio_analyzer.nlp_engine")
        spacy: Any = importlib.import_module("spacy")
        domains: Any = importlib.import_module("tldextract.tldextract")
    except ImportError as error:
        raise InvalidRequest(f"filter presidio needs {error.name}; install specaudit[presidio]") from error
    # the list of domains that the package brings: a list from the network would make decisions depend on the day
    domains.TLD_EXTRACTOR = domains.TLDExtract(cache_dir=None, suffix_list_urls=())
    pipeline = engines.SpacyNlpEngine(models=[{"lang_code": "en", "model_name": "blank"}])
    pipeline.nlp = {"en": spacy.blank("en")}
    registry = presidio.RecognizerRegistry(supported_languages=["en"])
    for name in recognising.__all__:
        kind = getattr(recognising, name)
        if isinstance(kind, type) and issubclass(kind, presidio.PatternRecognizer) and name != "PatternRecognizer":
            _add(registry, kind)
    _add(registry, recognising.PhoneRecognizer)
    return presidio.AnalyzerEngine(registry=registry, nlp_engine=pipeline, supported_languages=["en"])


def _add(registry: Any, kind: Any) -> None:
    recogniser = kind()
    if recogniser.supported_language == "en":
        registry.add_recognizer(recogniser)
