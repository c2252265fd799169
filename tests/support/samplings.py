"""Sampling parameters with enumerable laws."""

from engine.core.types import SamplingParams

SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.2, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.7, top_p=0.95
    ),
}
