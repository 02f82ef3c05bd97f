"""Rows of a dataset on the Hub are texts at one commit, read as needed, in silence and without anything else asked."""

import io
import itertools
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import warnings

import datasets
import pyarrow as pa
import pytest
from dataset_hub import commit_of, serving
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from pyarrow import parquet

from sinkscope.errors import TextError
from sinkscope.report import Report
from sinkscope.text import hub_datasets
from sinkscope.text.corpus import read_documents, windows
from sinkscope.text.documents.rows import parquet_batches
from sinkscope.text.hub_datasets import dataset_rows


def table(rows_at_once=10, **columns):
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, row_group_size=rows_at_once, compression="none")
    return file.getvalue()


def lines(*texts):
    return "".join(f'{{"text": "{text}", "id": {number}}}\n' for number, text in enumerate(texts)).encode()


CARD = b"""---
configs:
- config_name: raw
  data_files:
  - {split: train, path: raw/train-*}
  - {split: test, path: raw/test-*}
- config_name: clean
  data_files:
  - {split: train, path: clean/*}
---
"""
TEXTS = {
    "README.md": CARD,
    "raw/train-0.parquet": table(text=["first", "second", "third"]),
    "raw/test-0.parquet": table(text=["", "= Title =", None, " \n", "A paragraph."], id=range(5)),
    "clean/all.parquet": table(text=["only"]),
}
OTHERS = {
    "lab/lines": {"data.jsonl": lines("zero", "one")},
    "lab/parts": {"train.jsonl": lines("a"), "validation.jsonl": lines("b")},
    "lab/many": {f"{split}.jsonl": lines("a") for split in ("train", "validation", "test")},
    "lab/halves": {"README.md": CARD.replace(b"test", b"second").replace(b"train", b"first")}
    | {
        "raw/first-0.parquet": TEXTS["raw/train-0.parquet"],
        "raw/second-0.parquet": TEXTS["raw/test-0.parquet"],
    },
    "lab/code": {"code.py": b"raise SystemExit", "data.jsonl": lines("a")},
    "lab/gated": {"data.jsonl": lines("secret")},
    "lab/empty": {"README.md": b"# Nothing\n"},
    "lab/nothing": {"data.csv": b"text\n"},
    "lab/numbers": {"data.parquet": table(text=[1, 2])},
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub on this machine, which the clients in this process use; nothing is cached from other tests."""
    with serving({"lab/texts": TEXTS} | OTHERS) as found:
        found.gated = {"lab/gated"}
        found.moved = {"texts": "lab/texts"}
        use(monkeypatch, found.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            monkeypatch.setattr(datasets.config, name, False)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "home" / "datasets")
        # A request to count who loads what would be answered, and seen.
        monkeypatch.setattr(datasets.config, "S3_DATASETS_BUCKET_PREFIX", f"{found.endpoint}/counting")
        yield found


def use(monkeypatch, endpoint):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", endpoint)
    url = endpoint + "/datasets/{repo_id}/resolve/{revision}/{path}"
    monkeypatch.setattr(datasets.config, "HUB_DATASETS_URL", url)


def texts_of(rows):
    return [document.text for document in rows]


def test_rows_are_documents_and_the_facts_say_which_exactly(hub):
    rows = dataset_rows("lab/texts#raw:test:text")
    assert rows.name == "lab/texts#raw:test"
    assert texts_of(rows) == ["", "= Title =", "", " \n", "A paragraph."]
    assert [(document.name, document.many) for document in rows][1] == ("lab/texts#raw:test row 2", True)
    assert rows.facts == {
        "name": "lab/texts",
        "config": "raw",
        "split": "test",
        "column": "text",
        "revision": commit_of(TEXTS),
        "datasets_version": datasets.__version__,
    }


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("lab/lines", "lab/lines:train"),
        ("lab/many", "lab/many:test"),
        ("lab/parts", "lab/parts:validation"),
        ("lab/parts:train", "lab/parts:train"),
        ("lab/texts#raw", "lab/texts#raw:test"),
        ("lab/texts#clean", "lab/texts#clean:train"),
        ("texts#clean", "lab/texts#clean:train"),
        ("lab/lines::text", "lab/lines:train"),
    ],
)
def test_what_is_not_said_is_the_default(hub, given, name):
    assert dataset_rows(given).name == name


def test_the_column_of_the_dataset_goes_before_the_column_of_all(hub):
    hub.repositories["lab/columns"] = {"data.parquet": table(body=["a"], **{"x:y": ["b"]})}
    assert texts_of(dataset_rows("lab/columns", column="body")) == ["a"]
    assert texts_of(dataset_rows("lab/columns::x:y", column="body")) == ["b"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("#raw", r"^#raw names no dataset: write NAME\[#CONFIG\]\[:SPLIT\[:COLUMN\]\]$"),
        ("lab/texts#", "names no dataset"),
        ("lab texts", "lab texts is not a Hub id: an id looks like owner/name"),
        ("lab/none", "datasets/lab/none is not on the Hub, or is private: check the spelling, or set HF_TOKEN"),
        ("json", "datasets/json is not on the Hub"),
        ("lab/texts", "lab/texts has more than one configuration: name one as NAME.*; there are raw, clean$"),
        ("lab/texts#cleen", "lab/texts has no configuration 'cleen': name one as NAME.*; there are clean, raw$"),
        ("lab/many:tests", "lab/many has no split 'tests': name one as NAME.*; there are test, train, validation$"),
        ("lab/halves#raw", "lab/halves has more than one split, and no test: name one as .*; there are first, second$"),
        ("lab/texts#raw:test:txt", "lab/texts#raw:test has no column 'txt': name one as NAME.*; there are text, id$"),
        ("lab/lines::body", "lab/lines:train has no column 'body': name one as NAME.*; there are id, text$"),
        ("lab/code", r"datasets/lab/code comes as code \(code\.py\), which is never run: save its rows as \.jsonl"),
        ("lab/gated", "gated: accept its terms at https://huggingface.co/datasets/lab/gated, then set HF_TOKEN"),
        ("lab/empty", r"datasets/lab/empty cannot be read: .*: save its rows as \.jsonl and give them with --text$"),
        ("lab/nothing", "lab/nothing:train has no rows: name one as NAME"),
        ("lab/numbers", "lab/numbers:train row 1: text is of type int: give text"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_remedy(hub, given, reason):
    with pytest.raises(TextError, match=reason) as caught:
        dataset_rows(given)
    assert "\n" not in str(caught.value)


def test_a_token_opens_what_is_gated_and_is_never_told(hub):
    rows = dataset_rows("lab/gated", token="hf_secretsecret")  # noqa: S106 - not one
    assert texts_of(rows) == ["secret"]
    assert "hf_secret" not in repr(rows.facts)


def test_a_revision_is_the_commit_it_stands_for_and_an_unknown_one_is_refused(hub):
    older = {"data.jsonl": lines("old")}
    hub.tags["lab/lines"] = {"v1": older}
    rows = dataset_rows("lab/lines", revision="v1")
    assert (texts_of(rows), rows.facts["revision"]) == (["old"], commit_of(older))
    with pytest.raises(TextError, match="datasets/lab/lines has no such revision: give a branch, a tag or a commit"):
        dataset_rows("lab/lines", revision="v2")


def test_what_changes_on_the_hub_meanwhile_changes_nothing(hub):
    rows = dataset_rows("lab/lines")
    hub.repositories["lab/lines"] = {"data.jsonl": lines("other")}
    hub.tags["lab/lines"] = {"before": OTHERS["lab/lines"]}
    assert texts_of(rows) == ["zero", "one"]


def test_a_folder_of_the_same_name_is_not_the_dataset(hub, tmp_path, monkeypatch):
    folder = tmp_path / "lab" / "lines"
    folder.mkdir(parents=True)
    (folder / "data.jsonl").write_bytes(lines("local"))
    monkeypatch.chdir(tmp_path)
    assert texts_of(dataset_rows("lab/lines")) == ["zero", "one"]


def test_only_this_dataset_is_asked_for_and_at_one_commit_only(hub):
    list(dataset_rows("lab/texts#raw"))
    first, *rest = hub.asked
    assert first == "GET /api/datasets/lab/texts"
    commit = commit_of(TEXTS)
    places = tuple(f"/{place}" for place in ("api/datasets/lab/texts/", "datasets/lab/texts/resolve/"))
    assert rest
    assert [path for path in rest if not path.partition(" ")[2].startswith(places) or commit not in path] == []


@pytest.mark.slow
def test_no_more_is_fetched_than_the_rows_that_are_needed_and_each_once(hub):
    texts = [secrets.token_hex(500) for _ in range(60_000)]
    hub.repositories["lab/large"] = {"data.parquet": table(500, text=texts)}
    rows = dataset_rows("lab/large")
    assert texts_of(itertools.islice(rows, 100)) == texts[:100]
    fetched = hub.sent
    assert fetched < 45_000_000 < len(hub.repositories["lab/large"]["data.parquet"])
    assert texts_of(itertools.islice(rows, 100)) == texts[:100]
    assert hub.sent == fetched


def test_reading_ends_somewhere(hub, monkeypatch):
    monkeypatch.setattr(hub_datasets, "MOST_ROWS", 1)
    with pytest.raises(TextError, match="the first 1 rows of lab/lines:train give too few windows: give a smaller"):
        list(dataset_rows("lab/lines"))


def test_a_hub_out_of_reach_is_one_line_at_once_and_in_the_middle(hub, monkeypatch):
    hub.repositories["lab/two"] = {f"train-{part}.jsonl": lines(*"ab" * 50) for part in (1, 2)}
    rows = dataset_rows("lab/two")
    hub.broken.add("train-2")
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(TextError, match=r"datasets/lab/two is on the Hub, which cannot be reached .*: check"):
        list(rows)
    use(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(TextError, match=r"is on the Hub, which cannot be reached \(.*\): check the connection$"):
        dataset_rows("lab/lines")


@pytest.mark.parametrize("switch", [(constants, "HF_HUB_OFFLINE"), (datasets.config, "HF_DATASETS_OFFLINE")])
def test_offline_mode_is_kept_to_even_if_an_earlier_run_left_something(hub, monkeypatch, switch):
    list(dataset_rows("lab/lines"))
    hub.asked.clear()
    monkeypatch.setattr(*switch, True)
    with pytest.raises(TextError, match="is on the Hub, and offline mode is on: unset HF_HUB_OFFLINE and"):
        dataset_rows("lab/lines")
    assert [path for path in hub.asked if path != "GET /api/datasets/lab/lines"] == []


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets.load", None)
    with pytest.raises(TextError, match=r'^reading lab/texts needs datasets: pip install "datasets>=4\.8"$'):
        dataset_rows("lab/texts")


def test_a_library_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(datasets, "__version__", "4.7.12")
    with pytest.raises(TextError, match=r'needs a newer datasets than 4\.7\.12: pip install -U "datasets>=4\.8"$'):
        dataset_rows("lab/texts")


def test_the_libraries_are_left_as_they_were(hub):
    def state():
        config = {name: getattr(datasets.config, name) for name in hub_datasets._SETTINGS}
        levels = [logging.getLogger(name).level for name in ("datasets", "huggingface_hub")]
        bars = [datasets.are_progress_bars_disabled(), are_progress_bars_disabled("huggingface_hub")]
        return config, levels, bars, constants.HF_HUB_DISABLE_TELEMETRY, list(warnings.filters)

    before = state()
    walk = iter(dataset_rows("lab/texts#raw"))
    assert (next(walk).text, state()) == ("", before)
    with pytest.raises(TextError):
        dataset_rows("lab/none")
    assert state() == before


def test_rows_are_texts_like_others_and_blank_ones_are_counted(hub, tokenizer):
    with pytest.raises(TextError, match=r"the longest of 2 documents, lab/texts#raw:test row 5 has 12 tokens"):
        windows(tokenizer, read_documents([], others=[dataset_rows("lab/texts#raw")]), seq_len=64)
    found = windows(tokenizer, read_documents([], ["a prompt"], others=[dataset_rows("lab/texts#raw")]), seq_len=8)
    assert found.documents == ("lab/texts#raw:test row 2", "lab/texts#raw:test row 5", "prompt 1")
    told = found.provenance
    assert (told["documents_read"], told["rows_blank"]) == (3, 3)
    assert told["datasets"] == [dataset_rows("lab/texts#raw").facts]


def test_the_command_line_measures_a_dataset_and_keeps_its_commit(hub, run, tiny_llama, tmp_path):
    words = ("measure", tiny_llama, "--dataset", "lab/texts#raw", "--seq-len", "8", "--windows", "2")
    ended = run(*words, "-o", tmp_path / "run.json")
    assert ended.status == 0
    report = Report.load(tmp_path / "run.json")
    assert report.metadata["text"]["datasets"] == [dict(dataset_rows("lab/texts#raw").facts)]
    assert report.documents["document"].tolist() == ["lab/texts#raw:test row 2", "lab/texts#raw:test row 5"]
    for more, reason in (
        (("--synthetic", "random"), "--synthetic takes the place of a text"),
        (("--local-files-only",), "--local-files-only forbids"),
    ):
        refused = run(*words, *more)
        assert (refused.status, reason in refused.err) == (2, True)


def test_parquet_files_are_read_without_the_scanner(hub, monkeypatch):
    monkeypatch.setattr(sys.modules["datasets.packaged_modules.parquet.parquet"], "ds", None)
    hub.repositories["lab/two"] = {f"train-{part}.parquet": table(text=[part, None, "x"]) for part in "12"}
    assert texts_of(dataset_rows("lab/two")) == ["1", "", "x", "2", "", "x"]


def test_a_parquet_file_is_read_by_the_thread_that_asks_for_its_rows():
    threads = set()

    class Watched(io.BytesIO):
        def read(self, *words):
            threads.add(threading.get_ident())
            return super().read(*words)

    content = table(100, text=[f"row {number}" for number in range(1000)], other=range(1000))
    batches = list(parquet_batches(Watched(content), ["text"]))
    assert [text for batch in batches for text in batch["text"].to_pylist()] == [f"row {n}" for n in range(1000)]
    assert threads == {threading.get_ident()}


ENDS_HALF_READ = """
import io, os, sys, time
import pyarrow.dataset, pyarrow.parquet
from sinkscope.text.documents.rows import parquet_batches

class Slow(io.RawIOBase):
    # The first reads are those of the file's own description; a scanner's thread waits in those after them.
    def __init__(self, path):
        self.file, self.reads = open(path, "rb"), 0

    def readable(self):
        return True

    seekable = readable

    def seek(self, *words):
        return self.file.seek(*words)

    def tell(self):
        return self.file.tell()

    def read(self, size=-1):
        self.reads += 1
        time.sleep(0.05 if self.reads > 9 else 0)
        return self.file.read(size)

def scanned(file, _):
    # As the reader of the datasets library does.
    fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(file)
    rows = fragment.row_groups[0].num_rows
    for batch in fragment.to_batches(batch_size=rows, batch_readahead=0, fragment_readahead=0):
        yield from batch.column(0).to_pylist()

def half_read():
    batches = (scanned if sys.argv[2] == "scanner" else parquet_batches)(Slow(sys.argv[1]), ["text", "id"])
    next(batches)
    batches.close()

statuses = []
for _ in range(int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        half_read()
        break
    statuses.append(os.waitpid(child, 0)[1])
else:
    print(sorted(set(statuses)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that ends many times is forked")
def test_a_process_that_ends_with_rows_half_read_ends_well(tmp_path):
    # With "scanner" in place of "ours", one to five in twenty end with SIGABRT, as long as OMP_NUM_THREADS is not set.
    texts = [secrets.token_hex(200) for _ in range(20_000)]
    (tmp_path / "texts.parquet").write_bytes(table(1000, text=texts, id=range(20_000)))
    words = [sys.executable, "-c", ENDS_HALF_READ, tmp_path / "texts.parquet", "ours", "20"]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment)
    assert (done.stdout, done.stderr) == ("[0]\n", "")


READ_THREE = """
import itertools, sys
from sinkscope.text.hub_datasets import dataset_rows
assert "datasets" not in sys.modules
rows = dataset_rows(sys.argv[1])
print([document.text for document in itertools.islice(rows, 3)], flush=True)
"""


@pytest.mark.slow
def test_processes_side_by_side_say_nothing_and_write_into_the_home_of_the_hub_only(hub, tmp_path):
    home, work, user = (tmp_path / name for name in ("hf", "work", "user"))
    for folder in (work, user):
        folder.mkdir()
    hub.repositories["lab/texts"] = TEXTS | {"raw/test-0.parquet": table(text=[f"row {n}" for n in range(500)])}
    unset = {"HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"}
    wanted = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HOME": str(user), "TMPDIR": str(work)}
    # Bars are drawn without a terminal, and remarks of every kind are made, by those who are not told otherwise.
    loud = {"TQDM_POSITION": "-1", "DATASETS_VERBOSITY": "info", "HF_HUB_VERBOSITY": "info", "OMP_NUM_THREADS": "1"}
    environment = {key: value for key, value in os.environ.items() if key not in unset} | wanted | loud
    words = [sys.executable, "-W", "error", "-c", READ_THREE, "lab/texts#raw"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": work, "env": environment}
    for running in [subprocess.Popen(words, **how) for _ in range(2)]:
        out, err = running.communicate()
        assert (running.returncode, out.decode(), err.decode()) == (0, "['row 0', 'row 1', 'row 2']\n", "")
    assert list(home.iterdir())
    assert [*work.iterdir(), *user.iterdir()] == []
    assert [path for path in hub.asked if "/datasets/lab/texts" not in path] == []


def test_nothing_but_the_hub_is_connected_to(hub, monkeypatch):
    places = set()
    connect = socket.socket.connect

    def noted(self, address):
        places.add(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    list(dataset_rows("lab/texts#raw"))
    host, port = hub.endpoint.removeprefix("http://").split(":")
    assert places <= {(host, int(port))}
