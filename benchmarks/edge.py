"""Score a long text with the C library, and print how much memory its process has along the way.

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

from benchmarks.sides import PATH

__all__ = ["main"]

ROWS = 10
MORE = 10_000  # bytes behind the last row, so that the process still runs when that row is measured


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("bundle", type=PATH)
@click.argument("text", type=PATH)
@click.option("--xlscore", type=PATH, required=True, help="The program that scores.")
@click.option("--onnxruntime", type=PATH, help="ONNX Runtime's library; default: that of this Python.")
@click.option("--tokens", default=1_000_000, show_default=True, help="Tokens to score; a token of the model is a byte.")
@click.option("--threads", default=1, show_default=True, help="Threads of a step.")
def main(bundle: Path, text: Path, xlscore: Path, onnxruntime: Path | None, tokens: int, threads: int) -> None:
    """Score a long text with the C library."""
    size = sum(file.stat().st_size for file in bundle.rglob("*"))
    print(f"bundle of {size / 1e6:.2f} MB\n\n| tokens | resident MB | seconds |\n|---|---|---|")
    environment = {**os.environ, "XLRUNTIME_ONNXRUNTIME": str(onnxruntime or _installed())}
    with tempfile.TemporaryDirectory() as scratch:
        part = Path(scratch, "text")
        with text.open("rb") as file:
            found = part.write_bytes(file.read(tokens + MORE))
        if found < tokens + MORE:
            raise click.ClickException(f"{text}: {found:,} bytes, {tokens + MORE:,} are needed. Name a longer text.")
        command: list[str | Path] = [xlscore, bundle, part, "--threads", str(threads), "--tokens"]
        start, count, last = time.monotonic(), 0, ""
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for last in process.stdout:
                count += last[0].isdigit()
                if last[0].isdigit() and count <= tokens and count % (tokens // ROWS) == 0:
                    print(f"| {count:,} | {_resident(process.pid):.1f} | {time.monotonic() - start:.0f} |", flush=True)
    if process.returncode or count < tokens:
        raise click.ClickException(f"{xlscore} ended with status {process.returncode} after {count:,} tokens.")
    print(f"\n{last.strip()}")


def _resident(process: int) -> float:
    """Return the resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _installed() -> Path:
    """Return the library of this Python's ONNX Runtime."""
    import onnxruntime

    return next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))


if __name__ == "__main__":
    main()
