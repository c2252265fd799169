"""Tiny seeded models and a decoding session that checks every logit against a full forward."""

import math
from types import MethodType

import pytest
import torch
import transformers
from torch import Tensor

from engine.models.interface import Placement, WantedOutputs, chain_placement

VOCABULARY = 80
HEAD = 8
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
PARENTS = [[-1, 0, 0, 1, 2], [-1, 0, 1, 2, 0], [-1, -1, 0, 1, 3]]
PATHS = [[0, 2, 4], [0, 1, 2, 3], [1, 3, 4]]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def network(kind, dtype=torch.float32, **overrides):
    torch.manual_seed(7)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2
        )
        built = transformers.GPT2LMHeadModel(config)
    else:
        name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[kind]
        sizes = SIZES | ({"head_dim": HEAD} if kind == "qwen3" else {}) | overrides
        built = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes))
    with torch.no_grad():
        for parameter in built.parameters():  # norms and biases start as ones and zeros, which would hide mistakes
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return built.eval().to(dtype)


@pytest.fixture
def make_network():
    return network


def _norm64(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def _rope64(self, x, position_ids):
    frequencies = torch.tensor([math.pow(10000.0, -2 * i / HEAD) for i in range(HEAD // 2)], dtype=torch.float64)
    angles = position_ids[..., None].double() * frequencies
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


@pytest.fixture
def truly_float64():
    """Patch the parts of a transformers model that compute in float32 whatever its dtype."""

    def patch(built):
        for module in built.modules():
            kind = type(module).__name__
            if kind.endswith("RMSNorm"):
                module.forward = MethodType(_norm64, module)
            elif kind.endswith("RotaryEmbedding"):
                module.forward = MethodType(_rope64, module)
        return built

    return patch


class Session:
    """Rows of committed tokens in one cache; every answer is held against `reference(tokens)` [T, V]."""

    def __init__(self, model, reference, rows, first_row=0, spare=0):
        self.model, self.reference, self.first_row = model, reference, first_row
        self.cache = model.new_cache(first_row + rows + spare, 64)
        self.history = [[] for _ in range(rows)]
        self.worst = 0.0

    def _compare(self, logits, tokens):
        expected = self.reference(tokens)[-len(logits) :]
        self.worst = max(self.worst, (expected - logits).abs().max().item())

    def feed(self, new, keep):
        """Place chains of `new` tokens, then commit the first `keep` of each."""
        starts = [len(row) for row in self.history]
        placement = chain_placement(new, starts, self.cache.trash, self.first_row)
        logits = self.model.forward(self.cache, placement, WantedOutputs()).logits
        for row, tokens in enumerate(new):
            if tokens:
                self._compare(logits[row, : len(tokens)], self.history[row] + tokens)
            self.history[row] += tokens[: keep[row]]

    def tree(self, tokens, parents, paths):
        """Place a tree per row, compare every root-to-node path, commit `paths`."""
        logits = self.model.forward(self.cache, self._tree_placement(tokens, parents), WantedOutputs()).logits
        for row, tree in enumerate(parents):
            for node in range(len(tree)):
                path = _path(tree, node)
                whole = self.history[row] + [tokens[row][i] for i in path]
                self._compare(logits[row, path], whole)
        for row, path in enumerate(paths):
            start = len(self.history[row])
            source = tuple(start + i for i in path)
            self.cache.commit(self.first_row + row, source, tuple(range(start, start + len(path))))
            self.history[row] += [tokens[row][i] for i in path]

    def _tree_placement(self, tokens, parents) -> Placement:
        rows, nodes = len(tokens), len(tokens[0])
        starts = [len(row) for row in self.history]
        visible = torch.zeros(rows, nodes, max(starts) + nodes, dtype=torch.bool)
        depth = torch.zeros(rows, nodes, dtype=torch.long)
        for row, tree in enumerate(parents):
            visible[row, :, : starts[row]] = True
            for node in range(nodes):
                path = _path(tree, node)
                depth[row, node] = len(path) - 1
                visible[row, node, [starts[row] + i for i in path]] = True
        start = torch.tensor(starts)[:, None]
        slots = start + torch.arange(nodes)
        lengths, span = (nodes,) * rows, visible.shape[2]
        return Placement(torch.tensor(tokens), start + depth, slots, lengths, span, visible, self.first_row)


def _path(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def _random_tokens(generator, count):
    return torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()


@pytest.fixture
def make_session():
    return Session


@pytest.fixture
def largest_error():
    """Ragged prefill, ragged chains with rejections, trees, commits and more chains; the largest |logit error|."""

    def measure(model, reference_network, first_row=0, spare=0) -> float:
        def reference(tokens) -> Tensor:
            with torch.no_grad():
                return reference_network(torch.tensor([tokens])).logits[0]

        generator = torch.Generator().manual_seed(3)
        session = Session(model, reference, 3, first_row, spare)
        session.feed([_random_tokens(generator, n) for n in (7, 12, 4)], [7, 12, 4])
        for keep in ([2, 1, 3], [1, 4, 1], [3, 0, 2]):
            session.feed([_random_tokens(generator, n) for n in (3, 5, 3)], keep)
        session.feed([_random_tokens(generator, 2), [], _random_tokens(generator, 1)], [2, 0, 1])
        for _ in range(2):
            session.tree([_random_tokens(generator, 5) for _ in range(3)], PARENTS, PATHS)
            session.feed([_random_tokens(generator, n) for n in (1, 2, 1)], [1, 1, 1])
        return session.worst

    return measure
