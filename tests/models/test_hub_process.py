"""The command line against a Hub, in processes of their own: what the environment says is read at import."""

import json
import os
import subprocess
import sys

import pytest
from fixtures_cli import QUICK, process
from hub import commit_of, files_of, serving

pytestmark = pytest.mark.slow

LLAMA = "meta-llama/Llama-2-7b"
ORIGINAL = {"params.json": b"{}", "consolidated.00.pth": b"a pickle", "tokenizer.model": b"a vocabulary"}
TOKEN = "of-another+form/0123456789=="  # noqa: S105 - not one
SEVERAL = """
import json, sys
from sinkscope.cli.app import main
for words in json.loads(sys.stdin.read()):
    sys.argv = ["sinkscope", *words]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 1
"""


@pytest.fixture
def a_hub(tiny_llama):
    """Llama 2 as it is on the Hub: the original and its sibling in the transformers format."""
    with serving({LLAMA: ORIGINAL, f"{LLAMA}-hf": files_of(tiny_llama)}) as hub:
        yield hub


def refusals(commands, **environment):
    """What several runs say that all end with a refusal, in one process since each would take seconds to begin."""
    variables = {name: value for name, value in (os.environ | environment).items() if value is not None}
    code, words = [sys.executable, "-c", SEVERAL], json.dumps(commands).encode()
    ended = subprocess.run(code, input=words, capture_output=True, check=False, env=variables)
    lines = ended.stderr.decode().splitlines()
    assert (ended.returncode, ended.stdout) == (0, b""), lines
    said = [line.removeprefix("sinkscope: ") for line in lines if line.startswith("sinkscope: ")]
    assert len(said) == len(commands), lines
    assert TOKEN not in str(lines)
    return said


def test_the_first_line_that_a_user_types_is_answered(a_hub, tmp_path):
    ended = process("measure", LLAMA, **a_hub.environment(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert b"Perplexity" in ended.stdout
    assert f"note: {LLAMA} is not in the transformers format: {LLAMA}-hf was used instead" in ended.stderr.decode()
    assert not any(path.startswith(f"/{LLAMA}/") for path in a_hub.asked)
    assert (tmp_path / "hub" / "models--meta-llama--Llama-2-7b-hf").is_dir()
    # The same line once more, without the Hub.
    a_hub.asked.clear()
    words = ["measure", LLAMA, *QUICK, "--json", "-q"]
    again = process(*words, **a_hub.environment(tmp_path, HF_HUB_OFFLINE="1"))
    assert (again.returncode, again.stderr, a_hub.asked) == (0, b"", [])
    model = json.loads(again.stdout)["metadata"]["model"]
    assert (model["name"], model["id"]) == (LLAMA, f"{LLAMA}-hf")
    assert model["revision"] == commit_of(a_hub.repositories[f"{LLAMA}-hf"])


def test_options_lead_to_another_cache_and_another_revision(a_hub, tiny_llama, tmp_path):
    name = f"{LLAMA}-hf"
    a_hub.gated.add(LLAMA)
    a_hub.private[name] = TOKEN
    a_hub.revisions[name, "v1"] = files_of(tiny_llama) | {"README.md": b"as it was"}
    options = ["--revision", "v1", "--cache-dir", tmp_path / "cache"]
    ended = process("measure", name, *QUICK, *options, "--json", **a_hub.environment(tmp_path / "home", HF_TOKEN=TOKEN))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["metadata"]["model"]["revision"] == commit_of(a_hub.revisions[name, "v1"])
    assert TOKEN.encode() not in ended.stdout + ended.stderr
    assert set(a_hub.tokens) == {f"Bearer {TOKEN}"}
    assert [path.name for path in (tmp_path / "cache").glob("models--*")] == ["models--meta-llama--Llama-2-7b-hf"]
    assert not (tmp_path / "home" / "hub").exists()


def test_gated_missing_and_private_models_are_one_line_with_the_remedy(a_hub, tmp_path):
    files = a_hub.repositories[f"{LLAMA}-hf"]
    a_hub.repositories |= {"lab/private": files, "lab/half": files, "lab/old": {"config.json": b"{}"}}
    a_hub.repositories["lab/old"]["pytorch_model.bin"] = b""
    a_hub.gated |= {LLAMA, f"{LLAMA}-hf"}
    a_hub.private["lab/private"] = "somebody else's"
    a_hub.echo = True
    (tmp_path / "token").write_text(TOKEN)
    models = [LLAMA, f"{LLAMA}-hf", "lab/none", "lab/private", "lab/old"]
    said = refusals([["measure", model] for model in models], **a_hub.environment(tmp_path))
    page = f"https://huggingface.co/{LLAMA}-hf"
    gated = f"{LLAMA}-hf is gated: accept its terms at {page}, then set HF_TOKEN or run `hf auth login`"
    assert said[:2] == [gated, gated]
    assert [line.partition(":")[0] for line in said[2:]] == [
        "lab/none is not on the Hub, or is private",
        "lab/private is not on the Hub, or is private",
        "lab/old has its weights only as pytorch_model.bin, a pickle, which can run any code when it is opened",
    ]
    assert set(a_hub.tokens) == {f"Bearer {TOKEN}"}


def test_a_password_in_the_address_of_the_hub_is_sent_and_not_shown(a_hub, tmp_path):
    a_hub.gated.add(f"{LLAMA}-hf")
    a_hub.faults["lab/broken"] = (500, b"you sent {sent}", {"X-Error-Message": "you sent {sent}"})
    endpoint = a_hub.endpoint.replace("://", "://somebody:s3cr3t@")
    commands = [["measure", model] for model in (LLAMA, "lab/broken", "https://somebody:s3cr3t@example.org/a")]
    said = refusals(commands, **a_hub.environment(tmp_path, HF_ENDPOINT=endpoint))
    assert a_hub.tokens[0].startswith("Basic ")
    for line in said:
        assert "s3cr3t" not in line
        assert a_hub.tokens[0].removeprefix("Basic ") not in line
