"""A text read at once has the bits of the same text read token by token, whatever its length."""

import pytest
import torch

from engine.models.interface import WantedOutputs, chain_placement
from engine.models.loading import load_model

TEXT = tuple((7 * i * i + 31 * i + 5) % 2048 for i in range(130))
LENGTHS = (62, 63, 64, 97, 128, 130)


def read(model, cache, start, end):
    placement = chain_placement([TEXT[start:end]], [start], cache.trash)
    return model.forward(cache, placement, WantedOutputs()).logits[0]


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["fixed", "tiled"])
def test_reading_a_text_at_once_gives_the_bits_of_decoding_it(mode):
    torch.set_num_threads(1)
    model = load_model("bundled:target", numerics=mode).model
    with torch.inference_mode():
        cache = model.new_cache(1, len(TEXT))
        alone = torch.cat([read(model, cache, i, i + 1) for i in range(len(TEXT))])
        differing = [
            count for count in LENGTHS if not read(model, model.new_cache(1, len(TEXT)), 0, count).equal(alone[:count])
        ]
    assert not differing
