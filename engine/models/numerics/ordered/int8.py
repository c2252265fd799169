"""`ordered` with weights rounded to 8 bits, for drafts: a quarter of the memory to read per drafted token.

Rounding changes what a model says, so it is no arithmetic of a target. A draft's numbers decide only how many drafts
are accepted.
"""

from __future__ import annotations

from engine.models.numerics.interface import Affine, Matrix
from engine.models.numerics.ordered.ordered import OrderedNumerics, required
from engine.models.numerics.ordered.panels import rounded_panels


class Int8Numerics(OrderedNumerics):
    """Every matrix in 8 bits with a scale per output; embeddings, norms and attention as in `ordered`."""

    name = "int8"

    def matrix(self, affine: Affine) -> Matrix:
        """The product through rounded panels.

        Raises:
            ModelError: there is none for this dtype, device or processor.
        """
        return required(rounded_panels(affine), affine, "numerics int8", "remove it")
