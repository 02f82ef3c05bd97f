"""What happens inside one attention layer: its call, its weights, and the reductions that outlive them.

A new path through a layer goes into a file here and ends in the same `Reductions`.
"""

from sinkscope.attention.call import Call
from sinkscope.attention.question import Question, Rows
from sinkscope.attention.reductions import OF_VECTORS, OPTIONAL, PROJECTED, Reductions
from sinkscope.attention.site import Site

__all__ = ["OF_VECTORS", "OPTIONAL", "PROJECTED", "Call", "Question", "Reductions", "Rows", "Site"]
