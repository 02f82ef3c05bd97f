"""The implementation of attention that a config.json names, where it is not one that a measurement runs on."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_FUSED = ("flash_", "flex_", "paged|")
_KEY = "attn_implementation"


def without_fused_attention(directory: Path, options: dict[str, Any]) -> tuple[Any | None, list[str]]:
    """The configuration of a model in which no fused attention is named any more, and the note; None if none was.

    Fused implementations need packages, a device or a download, and a measurement runs on eager or sdpa in any case.
    """
    # Code that comes with a configuration need not run to see that none is named.
    if _KEY not in (directory / "config.json").read_text(encoding="utf-8", errors="replace"):
        return None, []
    config = AutoConfig.from_pretrained(directory, **options)
    named = sorted({name for name in map(_named, _parts(config)) if name is not None and not _usable(name)})
    if not named:
        return None, []
    for part in _parts(config):
        name = _named(part)
        if name is not None and not _usable(name):
            part._attn_implementation = None  # noqa: SLF001 - transformers then chooses, and has no public way to ask it
    return config, [f"config.json names {', '.join(named)}: transformers' own choice of sdpa or eager is used instead"]


def _parts(config: Any) -> list[Any]:
    parts = [getattr(config, key, None) for key in config.sub_configs]
    return [config, *(part for part in parts if part is not None)]


def _named(config: Any) -> str | None:
    name: str | None = config._attn_implementation  # noqa: SLF001 - as above
    return name


def _usable(name: str) -> bool:
    """Whether attention of this name runs here without anything else: transformers' plain ones, or the user's own."""
    known = name == "eager" or name in ALL_ATTENTION_FUNCTIONS.valid_keys()
    return known and not name.startswith(_FUSED)
