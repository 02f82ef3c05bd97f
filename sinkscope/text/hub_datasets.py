"""Texts from a dataset on the Hub, at one commit and row by row, without running any code that comes with it."""

import copy
import difflib
import functools
import importlib
import itertools
import logging
import re
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from huggingface_hub import DatasetInfo, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from sinkscope.errors import SinkscopeError, TextError
from sinkscope.models.failures import first_line, out_of_reach, refusal
from sinkscope.text.documents import COLUMN, Document, Rows, shown
from sinkscope.text.documents.rows import no_column, parquet_batches, text_of

SPELLING = "NAME[#CONFIG][:SPLIT[:COLUMN]]"
"""How a dataset is asked for; no name on the Hub has a # or : in it."""

MOST_ROWS = 100_000
"""Rows after which reading is given up: a dataset can have no end, and no row that is long enough."""

_SPELLED = re.compile(r"(?P<name>[^#:]+)(#(?P<config>[^:]+))?(:(?P<split>[^:]*)(:(?P<column>.+))?)?", re.DOTALL)
_OLDEST = (4, 8)
# The library by its own name: no index has sinkscope[datasets] yet, and a checkout has it as '.[datasets]'.
_NEEDED = f"datasets>={'.'.join(map(str, _OLDEST))}"
_SECONDS = 10.0
_SETTINGS: dict[str, object] = {
    # A request to another host, which only counts.
    "HF_UPDATE_DOWNLOAD_COUNTS": False,
    # The library's own patience with a broken connection is two minutes for each part of a file.
    "STREAMING_OPEN_MAX_RETRIES": 2,
    "STREAMING_OPEN_RETRY_INTERVAL": 1,
    "STREAMING_READ_MAX_RETRIES": 2,
    "STREAMING_READ_RETRY_INTERVAL": 1,
    "STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL": 1,
    "STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL": 1,
}
"""The configuration of the datasets library while it works for us."""

_INSTEAD = "save its rows as .jsonl and give them with --text"
_ANOTHER = f"name one as {SPELLING}"
_LISTED = 12
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class _Wanted:
    """What is wanted of which dataset, with whose token, and the library that reads it."""

    name: str
    config: str | None
    split: str | None
    column: str
    token: str | None
    package: Any


def dataset_rows(
    given: str, *, column: str | None = None, revision: str | None = None, token: str | None = None
) -> Rows:
    """The rows of a dataset on the Hub, given as in SPELLING: each is a document, with its text in a column.

    Without a name for it, the configuration is the dataset's default, the split is the only one, else `test`, else
    `validation`, and the column is `column`, else "text". `revision` is a branch, a tag or a commit. The first row is
    read here and the others when they are needed; a row is read once. A row without a text is a document of no length.
    Raises TextError, with the remedy in one line, for everything that keeps rows from being read.
    """
    found = _SPELLED.fullmatch(given)
    if found is None:
        raise TextError(f"{shown(given)} names no dataset: write {SPELLING}")
    name, config, split = found["name"], found["config"], found["split"] or None
    wanted = _Wanted(name, config, split, found["column"] or column or COLUMN, token, _library(name))
    with _working(wanted):
        info = _info(wanted, revision)
        builder = _builder(wanted, info)
    config, split, dataset = _opened(wanted, builder)
    facts: dict[str, object] = {"name": info.id, "config": config, "split": split, "column": wanted.column}
    facts |= {"revision": info.sha, "datasets_version": wanted.package.__version__}
    return _kept(wanted, f"{info.id}{'' if config == 'default' else f'#{config}'}:{split}", dataset, facts)


def _library(name: str) -> Any:
    try:
        # Any folder called datasets can be imported, but only the library has this.
        importlib.import_module("datasets.load")
    except ImportError:
        raise TextError(f'reading {shown(name)} needs datasets: pip install "{_NEEDED}"') from None
    library = importlib.import_module("datasets")
    if tuple(map(int, library.__version__.split(".")[:2])) < _OLDEST:
        have = f"reading {shown(name)} needs a newer datasets than {library.__version__}"
        raise TextError(f'{have}: pip install -U "{_NEEDED}"')
    return library


def _info(wanted: _Wanted, revision: str | None) -> DatasetInfo:
    """What the Hub says of the dataset at a revision; it can be known by another name there, and refuse its files."""
    if wanted.package.config.HF_DATASETS_OFFLINE:  # said in time: later the library only says that it found nothing
        raise OfflineModeIsEnabled("HF_DATASETS_OFFLINE is set")
    api = HfApi(token=wanted.token)
    info = api.dataset_info(wanted.name, revision=revision, timeout=_SECONDS)
    if info.gated:
        api.auth_check(info.id, repo_type="dataset")
    script = f"{info.id.rpartition('/')[2]}.py"
    if any(file.rfilename == script for file in info.siblings or []):
        raise TextError(f"datasets/{info.id} comes as code ({script}), which is never run: {_INSTEAD}")
    return info


def _builder(wanted: _Wanted, info: DatasetInfo) -> Any:
    # With this in front, a folder on this disk is never taken for the dataset of the same name.
    place = f"hf://datasets/{info.id}"
    try:
        builder = wanted.package.load_dataset_builder(place, wanted.config, revision=info.sha, token=wanted.token)
    except ValueError:
        there = wanted.package.get_dataset_config_names(place, revision=info.sha, token=wanted.token)
        if wanted.config in there:
            raise
        missing = "more than one configuration" if wanted.config is None else f"no configuration {wanted.config!r}"
        raise TextError(f"{info.id} has {missing}: {_choice(wanted.config, there)}") from None
    if builder.hash != info.sha:
        raise TextError(f"datasets/{info.id} could not be fetched from the Hub at {info.sha}: try again later")
    return builder


def _split(wanted: _Wanted, there: Sequence[str]) -> str:
    likely = [wanted.split] if wanted.split else [*(there if len(there) == 1 else ()), "test", "validation"]
    found = next((split for split in likely if split in there), None)
    if found is None:
        missing = f"no split {shown(wanted.split)!r}" if wanted.split else "more than one split, and no test"
        raise TextError(f"{wanted.name} has {missing}: {_choice(wanted.split, there)}")
    return found


def _opened(wanted: _Wanted, builder: Any) -> tuple[str, str, Any]:
    """The names of the configuration and of the split, and the rows, of which none has been read."""
    files = {str(split): each for split, each in builder.config.data_files.items()}
    split = _split(wanted, list(files))
    with _working(wanted):
        # The other splits need not be looked at, and can have other columns, which would be held against this one.
        builder.config.data_files = type(builder.config.data_files)({split: files[split]})
        _read_in_this_thread(wanted, builder)
        return builder.config.name, split, builder.as_streaming_dataset(split)


def _read_in_this_thread(wanted: _Wanted, builder: Any) -> None:
    """Have Parquet files read without pyarrow's scanner, whose threads can abort a process that ends."""
    library = importlib.import_module("datasets.packaged_modules.parquet.parquet")
    if isinstance(builder, library.Parquet):
        builder._generate_tables = functools.partial(_tables, wanted, builder)  # noqa: SLF001 - it offers no other place
        builder.SLEEP_ON_THREADS_SHUTDOWNS = False  # there are none to wait for


def _tables(wanted: _Wanted, builder: Any, files: Sequence[str], **_: Any) -> Iterator[tuple[str, Any]]:
    """Keys and tables, as the library's own reader gives them."""
    pyarrow, library = map(importlib.import_module, ("pyarrow", "datasets.utils.file_utils"))
    how = wanted.package.DownloadConfig(token=wanted.token)
    for number, name in enumerate(files):
        with library.xopen(name, "rb", download_config=how) as file:
            for index, batch in enumerate(parquet_batches(file, builder.config.columns)):
                table = pyarrow.Table.from_batches([batch])
                yield f"{number}_{index}", builder._cast_table(table)  # noqa: SLF001 - as above


def _choice(asked: str | None, there: Sequence[str]) -> str:
    """What there is to choose from, the likeliest first, and how to ask for it."""
    alike = {name: difflib.SequenceMatcher(a=name.lower(), b=(asked or "").lower()).ratio() for name in there}
    first = [shown(name) for name in sorted(there, key=lambda name: -alike[name])[:_LISTED]]
    more = ["…"] if len(there) > _LISTED else []
    return f"{_ANOTHER}; there are {', '.join(first + more)}"


def _kept(wanted: _Wanted, name: str, dataset: Any, facts: dict[str, object]) -> Rows:
    """The rows to walk through more than once, though each is fetched once; the first is fetched here."""
    rows = iter(_narrowed(wanted, name, dataset))
    documents = _documents(wanted, name, rows)
    # What is still open when the process ends complains that the libraries it is made of have gone.
    weakref.finalize(documents, rows.close)
    (kept,) = itertools.tee(documents, 1)
    if next(copy.copy(kept), None) is None:
        raise TextError(f"{name} has no rows: {_ANOTHER}")
    return Rows(name, lambda: copy.copy(kept), facts)


def _narrowed(wanted: _Wanted, name: str, dataset: Any) -> Any:
    """The dataset with no more than the wanted column, as far as its columns are known before a row is read."""
    known = dataset.column_names
    if known is None:
        return dataset
    if wanted.column not in known:
        raise no_column(name, wanted.column, known, _ANOTHER)
    return dataset.select_columns([wanted.column])  # pictures beside the text need not be decoded


def _documents(wanted: _Wanted, name: str, rows: Iterator[dict[str, Any]]) -> Iterator[Document]:
    column = wanted.column
    for number, row in enumerate(_in_batches(wanted, rows), 1):
        if number > MOST_ROWS:
            raise TextError(f"the first {MOST_ROWS:,} rows of {name} give too few windows: give a smaller --seq-len")
        if column not in row:
            raise no_column(name, column, row, _ANOTHER)
        place = f"{name} row {number}"
        yield Document(place, "" if row[column] is None else text_of(place, row, column), many=True)


def _in_batches(wanted: _Wanted, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    while True:
        with _working(wanted):
            batch = list(itertools.islice(rows, _ROWS_AT_ONCE))
        if not batch:
            return
        yield from batch


@contextmanager
def _working(wanted: _Wanted) -> Iterator[None]:
    """Within, the libraries are silent and ask for what is needed only; what they raise becomes a TextError."""
    with ExitStack() as after:
        _quieten(after, wanted.package)
        _set(after, wanted.package.config, _SETTINGS)
        _set(after, constants, {"HF_HUB_DISABLE_TELEMETRY": True})
        try:
            yield
        except SinkscopeError:
            raise
        except Exception as error:  # noqa: BLE001 - of all that can go wrong in there, nothing may be shown raw
            raise _refused(error, wanted) from None


def _refused(error: Exception, wanted: _Wanted) -> TextError:
    name = f"datasets/{shown(wanted.name)}"
    links = list(_chain(error))
    if any(isinstance(link, OfflineModeIsEnabled) for link in links):
        return TextError(
            f"{name} is on the Hub, and offline mode is on: unset HF_HUB_OFFLINE and HF_DATASETS_OFFLINE, or {_INSTEAD}"
        )
    for link in links:
        if out_of_reach(link):
            reason = first_line(link, wanted.token)
            return TextError(f"{name} is on the Hub, which cannot be reached ({reason}): check the connection")
        if isinstance(link, HfHubHTTPError | HFValidationError):
            return TextError(str(refusal(link, name, wanted.token)))
    return TextError(f"{name} cannot be read: {first_line(error, wanted.token)} ({type(error).__name__}): {_INSTEAD}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        # The library asks for a file that is seldom there: what it does next happens in the wake of that error.
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _quieten(after: ExitStack, library: Any) -> None:
    after.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    for logger in map(logging.getLogger, ("datasets", "huggingface_hub")):
        after.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
    if not library.are_progress_bars_disabled():
        after.callback(library.enable_progress_bars)
        library.disable_progress_bars()
    if not are_progress_bars_disabled("huggingface_hub"):
        after.callback(enable_progress_bars, "huggingface_hub")
        disable_progress_bars("huggingface_hub")


def _set(after: ExitStack, module: Any, settings: dict[str, object]) -> None:
    for name, value in settings.items():
        if hasattr(module, name):  # older releases lack some
            after.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
