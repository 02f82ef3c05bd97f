"""A finished run: tidy tables with everything needed to repeat it, and the JSON file that holds them."""

import dataclasses
import difflib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.errors import OutputError, ReportError, UnknownNameError
from sinkscope.files import replacing

FORMAT = "sinkscope-report"
VERSION = 1

TEXT = pd.Series(["text"]).dtype
"""What pandas makes of text: a type of its own in one major version, plain objects in another."""

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
class Report:
    """The tables of one run, wide and tidy, and its metadata.

    * `heads`: one row per (normalizer, layer, call, head); every figure with its standard error over windows in `_se`.
    * `layers`: one row per (normalizer, layer, call): unweighted means over heads.
    * `tokens`: one row per (normalizer, window, position): the token, its class, and the mass it receives.
    * `positions`: one row per (normalizer, layer, call, head, bin of query positions): first-token mass.
    * `summary`: one row per normalizer: unweighted means over all heads, and the perplexity.
    * `documents`: one row per (normalizer, document): the same means and the perplexity over its windows alone.
    * `protocols`: one row per (normalizer, protocol, figure): what a named protocol is read off by.
    * `activations`: one row per (normalizer, layer, call): figures of the layer's hidden states and attention output.
    * `massive`: one row per (normalizer, layer, call, rank): the largest entries of the hidden states.
    * `lse`: one row per (normalizer, layer, call, head, level) of a comparison that log-sum-exp explains, else empty.
    * `sweep`: one row per (normalizer, layer) of a sweep that swaps one layer at a time, else empty.

    Every table names the protocol that was followed; several protocols stand below each other.
    Undefined is null (NaN in a frame), and `metadata["undefined"]` says why. In the file an infinite figure is the
    string "inf" or "-inf", since JSON has none.
    """

    heads: pd.DataFrame
    layers: pd.DataFrame
    tokens: pd.DataFrame
    positions: pd.DataFrame
    summary: pd.DataFrame
    metadata: dict[str, Any] = field(default_factory=dict)
    lse: pd.DataFrame = field(default_factory=pd.DataFrame)
    sweep: pd.DataFrame = field(default_factory=pd.DataFrame)
    documents: pd.DataFrame = field(default_factory=pd.DataFrame)
    protocols: pd.DataFrame = field(default_factory=pd.DataFrame)
    activations: pd.DataFrame = field(default_factory=pd.DataFrame)
    massive: pd.DataFrame = field(default_factory=pd.DataFrame)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name."""
        names = [each.name for each in dataclasses.fields(self) if each.name != "metadata"]
        return {name: getattr(self, name) for name in names}

    def first(self) -> "Report":
        """The run under its first protocol and normalizer: the baseline of a comparison, else all there is."""
        row = self.summary.iloc[0]
        return self.by(row["protocol"]).under(row["normalizer"]) if "protocol" in row else self.under(row["normalizer"])

    def under(self, normalizer: str) -> "Report":
        """The run under one normalizer alone, by its name in the tables; under every protocol that was followed.

        Raises UnknownNameError for a normalizer that the run does not hold.
        """
        return self._only("normalizer", normalizer)

    def by(self, protocol: str) -> "Report":
        """The run by one protocol alone, with that run's own metadata; raises UnknownNameError for another."""
        runs = self.metadata.get("runs", {})
        return dataclasses.replace(self._only("protocol", protocol), metadata=runs.get(protocol, self.metadata))

    def _only(self, column: str, value: str) -> "Report":
        names = self.summary[column].unique().tolist() if column in self.summary else []
        if value not in names:
            near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownNameError(
                f"the report has no {column} named {value!r}: {guess}there are {', '.join(map(str, names))}"
            )
        tables: dict[str, Any] = {
            key: table[table[column] == value].reset_index(drop=True) if column in table else table
            for key, table in self.tables().items()
        }
        return dataclasses.replace(self, **tables)

    def to_json(self) -> str:
        """The whole run as one strict JSON document, a column to a line."""
        lines = []
        for name, table in self.tables().items():
            columns = [f"{_dump(column)}: {_dump(table[column].tolist())}" for column in table.columns]
            types = {column: _type(table[column].dtype) for column in table.columns}
            lines.append(f'{_dump(name)}: {{\n"types": {_dump(types)},\n"columns": {{\n' + ",\n".join(columns) + "\n}}")
        head = f'"format": {_dump(FORMAT)},\n"version": {VERSION},\n"metadata": {_dump(self.metadata, indent=1)}'
        return "{\n" + head + ',\n"tables": {\n' + ",\n".join(lines) + "\n}\n}\n"

    def save(self, path: str | Path) -> None:
        """Write the run to a JSON file, atomically; raises OutputError, also for the suffix of another format."""
        if Path(path).suffix.lower() not in {"", ".json"}:
            raise OutputError(
                f"cannot write {path}: save writes .json; "
                "use sinkscope.exporters.export(report, path) for the other formats"
            )
        with replacing(Path(path)) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Read a run back, with equal tables and metadata; raises ReportError for a file that is none."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
        except OSError as error:
            raise ReportError(f"cannot read {path}: {error.strerror or error}; give a report of sinkscope") from error
        except ValueError as error:
            raise ReportError(f"{path} is not a JSON report of sinkscope: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ReportError(f"{path} is JSON, but not a report of sinkscope: give what `-o run.json` has written")
        if document.get("version") != VERSION:
            raise ReportError(
                f"{path} is a report of version {document.get('version')}, and this sinkscope reads {VERSION}: "
                "measure again, or use the sinkscope that has written it"
            )
        try:
            tables = {name: _table(stored) for name, stored in document["tables"].items()}
            return cls(**tables, metadata=document["metadata"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ReportError(f"{path} is a damaged report of sinkscope ({error}): measure again") from error


def _table(stored: dict[str, Any]) -> pd.DataFrame:
    columns = {name: _column(cells, stored["types"][name]) for name, cells in stored["columns"].items()}
    # pandas would fill the shorter ones up, and a damaged file would pass for a whole one.
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("its columns have different lengths")
    return pd.DataFrame(columns)


def _type(dtype: Any) -> str:
    return str(dtype.name) if dtype.kind in "biuf" else "object" if dtype.name == "object" else "text"


def _column(cells: list[Any], kind: str) -> "pd.Series[Any]":
    if kind.startswith("float"):
        cells = [math.nan if cell is None else float(cell) for cell in cells]
    return pd.Series(cells, dtype=TEXT if kind == "text" else kind)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: the one is null, the other a string that float() understands."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _dump(value: Any, indent: int | None = None) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)
    # A file name that is not UTF-8 reaches Python as lone surrogates, which only an escape can carry.
    return SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
