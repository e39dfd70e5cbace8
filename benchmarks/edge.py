"""Score 1,000,000 bytes with the C library, and print how much memory its process has along the way.

    xlexport convert samples/transformer_xl_bytes/checkpoint.pt --dtype int8 -o bundle
    python -m benchmarks.edge bundle war_and_peace.txt --xlscore build/xlscore

`xlscore` comes from a C archive or from a build of runtime/c. Resident memory is what Linux says in /proc.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import click

from benchmarks.footprint import onnxruntime_library, size
from benchmarks.sides import PATH

__all__ = ["main"]

ROW = 100_000  # tokens, which are bytes
LAST = 1_000_000
MORE = 10_000  # bytes behind the last row, so that the process still runs when that row is measured


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("bundle", type=PATH)
@click.argument("text", type=PATH)
@click.option("--xlscore", type=PATH, required=True, help="The program that scores.")
def main(bundle: Path, text: Path, xlscore: Path) -> None:
    """Print a row for each 100,000 tokens."""
    print(f"bundle of {size(bundle.iterdir()):.2f} MB\n\n| tokens | resident MB | seconds |\n|---|---|---|")
    with tempfile.NamedTemporaryFile() as part, text.open("rb") as file:
        if part.write(file.read(LAST + MORE)) < LAST + MORE:
            raise click.ClickException(f"{text} has fewer than {LAST + MORE:,} bytes. Name a longer text.")
        part.flush()
        command = ["env", f"XLRUNTIME_ONNXRUNTIME={onnxruntime_library()}", *map(str, (xlscore, bundle, part.name))]
        start, count, last = time.monotonic(), 0, ""
        with subprocess.Popen([*command, "--threads", "1", "--tokens"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                count, last = count + 1, line.strip()
                if count % ROW == 0:
                    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                    memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
                    print(f"| {count:,} | {memory:.1f} | {time.monotonic() - start:.0f} |", flush=True)
    if process.returncode or count < LAST:
        raise click.ClickException(f"{xlscore} ended with status {process.returncode} after {count:,} lines.")
    print(f"\n{last}")


if __name__ == "__main__":
    main()
