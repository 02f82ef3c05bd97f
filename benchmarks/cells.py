"""The raw figures of one length, in a file with a row a line: any table can be made of them again."""

import json
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers

CLOSE = 1e-4
"""Masses that differ by more than this are not the same figure."""


@dataclass
class Cell:
    """What one row did at one length: seconds of each repeat, bytes at most, and how far its masses are from ours."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int | None = None
    off: float | None = None
    note: str | None = None
    """Why it was not run."""

    @property
    def void(self) -> bool:
        """Whether it computes something else than what it is held against."""
        return self.off is not None and not self.off <= CLOSE

    @property
    def seconds(self) -> float:
        """The median by the wall."""
        return statistics.median(self.wall)


@dataclass
class Run:
    """All rows at one length, interleaved."""

    tokens: int
    setting: str
    cells: dict[str, Cell] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write it to its file in the folder, in place of an older one."""
        head = {"tokens": self.tokens, "setting": self.setting}
        keep(folder / f"measuring-{self.tokens}.json", head, {key: _told(cell) for key, cell in self.cells.items()})


def keep(path: Path, head: Mapping[str, object], rows: Mapping[str, object]) -> None:
    """Write raw figures with a row a line: {…head, "rows": {name: figures}}."""
    lines = [f"  {json.dumps(name)}: {json.dumps(figures)}" for name, figures in rows.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(head)[:-1] + ', "rows": {\n' + ",\n".join(lines) + "\n}}\n"
    path.write_text(text, encoding="utf-8")


def rounded(seconds: Iterable[float]) -> list[float]:
    """To a tenth of a millisecond."""
    return [round(each, 4) for each in seconds]


def saved(folder: Path) -> list[Run]:
    """The runs in a folder, the shortest first."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("measuring-*.json")]
    runs = [Run(each["tokens"], each["setting"], _cells(each["rows"])) for each in found]
    return sorted(runs, key=lambda run: run.tokens)


def setting() -> str:
    """The machine and the versions that figures hold for."""
    machine = f"{platform.machine()}, threads: {torch.get_num_threads()}"
    return f"fp32 on {machine}; torch {torch.__version__}, transformers {transformers.__version__}"


def _cells(found: dict[str, dict[str, object]]) -> dict[str, Cell]:
    return {key: Cell(**each) for key, each in found.items()}  # type: ignore[arg-type]


def _told(cell: Cell) -> dict[str, object]:
    fields = asdict(cell) | {"wall": rounded(cell.wall), "cpu": rounded(cell.cpu)}
    return {name: value for name, value in fields.items() if value not in (None, [])}
