"""`ordered` with weights rounded to 8 bits, for drafts: a quarter of the memory to read per drafted token.

Rounding changes what a model says, so it is no arithmetic of a target. A draft's numbers decide only how many drafts
are accepted.
"""

from __future__ import annotations

from engine.core.errors import ModelError
from engine.models.numerics.interface import Affine, Matrix
from engine.models.numerics.ordered import OrderedNumerics
from engine.models.numerics.panels import rounded_panels


class Int8Numerics(OrderedNumerics):
    """Every matrix in 8 bits with a scale per output; embeddings, norms and attention as in `ordered`."""

    name = "int8"

    def matrix(self, affine: Affine) -> Matrix:
        """The product through rounded panels.

        Raises:
            ModelError: there is none for this dtype, device or processor.
        """
        made = rounded_panels(affine)
        if made is None:
            dtype = str(affine.weight.dtype).removeprefix("torch.")
            raise ModelError(f"numerics int8: no product for {dtype} on this {affine.weight.device.type}; remove it")
        return made
