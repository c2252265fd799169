"""README's suite at endpoints: a plain one, and two that speculate."""

from tests.support.readme_suite import Shape

WEIGHTS, HOSTED = "bundled:target", "served:bundled"
"""A target whose files are here, and one whose files are the provider's."""


def shape(plain, sound, speculating, source, **named):
    """Three addresses: the target alone, and with drafts of the greedy and of the sampled arm."""
    engine = {"url": plain.url, "model": "bundled", "server": "vllm"}
    clean, arm = ({"engine": {"url": server.url}} for server in (sound, speculating))
    more = {"engine": engine, **named.pop("more", {})}
    served = {"kind": "served", "gamma": 4}
    return Shape({"target": source}, "openai", proposer=served, arm=arm, clean=clean, more=more, **named)
