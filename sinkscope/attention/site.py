"""Where in a model a call comes from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """Where a call comes from: a module by its qualified name, the layer's own number, and which call it is.

    `call` counts the calls of one module within one forward: looped layers run several times.
    """

    name: str
    layer: int
    call: int
    layer_type: str | None
    window: int | None
