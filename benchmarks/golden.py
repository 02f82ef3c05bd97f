"""Whether two checkouts give the same tables, to the last digit, on this machine.

    git worktree add ../before main~1
    python benchmarks/golden.py ../before

Every case is run by both, each in a process of its own with one thread: `measure` and `compare` on the embedded model
and on tiny models of many architectures, with padding, protocols, sampled queries, optional metrics and gradients, and
the two commands as they are typed. It needs nothing of a checkout but the public functions and the command line, and
ends with status 1 if any table differs.
The cases are those of golden_cases.py.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run all cases in both checkouts, and say where their tables differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    asked = parser.parse_args()
    sys.exit(compare(asked.other.resolve(), HERE.parent, asked.only))


def compare(before: Path, after: Path, only: str) -> int:
    """Status 0 if every table of every case is the same; what differs is printed."""
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for name, checkout in (("before", before), ("after", after)):
            file, started = Path(folder, name), time.monotonic()
            command = [sys.executable, str(HERE / "golden_cases.py"), str(file), "--only", only]
            subprocess.run(command, check=True, env=_environment(checkout), stdout=sys.stderr)  # noqa: S603 - ourselves
            results.append(json.loads(file.read_text(encoding="utf-8")))
            print(f"{checkout}: {len(results[-1])} cases in {time.monotonic() - started:.0f} s", flush=True)
    old, new = results
    count = differing = 0
    for name in sorted(old.keys() | new.keys()):
        found = list(differences(old.get(name, {}), new.get(name, {})))
        count += len(new.get(name, {}))
        differing += bool(found)
        print("\n".join([f"{name}: {'differs' if found else 'the same'}", *(f"    {each}" for each in found)]))
    print(f"{count} tables of {len(new)} cases, {differing} cases differ")
    return int(differing > 0)


def _environment(checkout: Path) -> dict[str, str]:
    ours = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
    return {name: value for name, value in os.environ.items() if name != "SINKSCOPE_MODEL"} | ours


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What is not the same in two sets of tables, in a line each."""
    for table in sorted(old.keys() | new.keys()):
        if table not in old or table not in new:
            yield f"{table} is only {'after' if table in new else 'before'}"
            continue
        for column in dict.fromkeys([*old[table], *new[table]]):
            if column not in old[table] or column not in new[table]:
                yield f"{table}.{column} is only {'after' if column in new[table] else 'before'}"
            elif not _same(old[table][column], new[table][column]):
                yield f"{table}.{column}: {_distance(old[table][column], new[table][column])}"
        if list(old[table]) != list(new[table]) and old[table].keys() == new[table].keys():
            yield f"{table} has its columns in another order"


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)  # NaN equals NaN, and 0 is not -0


def _distance(one: list[Any], other: list[Any]) -> str:
    if len(one) != len(other):
        return f"{len(one)} rows before and {len(other)} after"
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if not _same(a, b)]
    numbers = [abs(a - b) for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)]
    largest = max((each for each in numbers if not math.isnan(each)), default=None)
    first = f"{pairs[0][0]!r} before and {pairs[0][1]!r} after"
    return f"{len(pairs)} of {len(one)} rows, {first}" + ("" if largest is None else f", at most {largest:.1e} apart")


if __name__ == "__main__":
    main()
