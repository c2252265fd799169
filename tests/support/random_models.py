"""Folders of untrained models."""

import torch


def save(model, tokenizer, folder):
    """The model with larger weights than at initialisation, so that rows differ, and its tokenizer."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
