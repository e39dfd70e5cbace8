"""Each command once, with light work, as a user starts it: in a folder of documents and an empty home."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.helpers.paths import GOLDEN

__all__ = ["COMMANDS", "remote_calls", "run_in", "write_documents"]

TINY = "--n-layer 1 --n-head 2 --d-model 8 --d-head 4 --d-inner 8 --tgt-len 8 --mem-len 8 --batch-size 1 --threads 1"
TRAIN = f"xlexport train text.txt -o run --steps 2 {TINY}"
# A line for each command, and for each way in which it starts processes; BUNDLE is made of CHECKPOINT.
COMMANDS = {
    "bench": "xlexport bench BUNDLE --rounds 1 --repeats 1 --threads 1",
    "compare": "xlexport compare a.csv a.csv",
    "completion": "xlexport completion bash",
    "configure": "xlexport configure BUNDLE -o other --mem-len 10",
    "context": "xlexport context BUNDLE text.txt --lengths 2,4 --no-recl",
    "convert": "xlexport convert CHECKPOINT -o converted --segments 2 --threads 1",
    "doctor": "xlexport doctor",
    "evaluate": "xlexport evaluate BUNDLE text.txt --protocol document",
    "generate": "xlexport generate BUNDLE It --max-tokens 3",
    "inspect": "xlexport inspect BUNDLE",
    "picture": "xlexport picture BUNDLE -o picture.png",  # is refused
    "plot": "xlexport plot bits BUNDLE text.txt -o bits.png",
    "prepare": "xlexport prepare text.txt -o data",
    "quantize": "xlexport quantize BUNDLE -o int8 --tokens 2048 --max-delta-bits 0.5 --threads 1",
    "report": "xlexport report BUNDLE text.txt -o page.html",
    "reproduce": "xlexport reproduce enwik8-base text.txt --model CHECKPOINT --bundle BUNDLE",
    "score": "xlexport score BUNDLE text.txt text.txt --processes 2",
    "score --ray": "xlexport score BUNDLE rows.jsonl --field text -o scores --ray --processes 1 --threads 1",
    "serve": "xlexport serve BUNDLE --port 0 --threads 1",
    "train": TRAIN,
    "train by torchrun": f"python -P -m torch.distributed.run --nproc-per-node 1 --no-python {TRAIN}",
    "translate": f"xlexport translate {GOLDEN}/encoder_decoder/translator line.txt --threads 1",
    "verify": "xlexport verify BUNDLE CHECKPOINT --segments 2 --threads 1",
    "web": "xlexport web BUNDLE -o site",
    "harness": "python -P -m xlexport.harness --model xlexport --model_args bundle=BUNDLE,threads=1 --tasks lines "
    "--include_path .",
}
TASK = """task: lines
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""
PLANTED = 'import sys; open({!r}, "a").write(__name__ + " " + " ".join(sys.orig_argv[:4]) + "\\n")\n'
CALLS = re.compile(r"\b(?:connect|sendto|sendm+sg)\(.*sa_family=AF_INET")
LOOPBACK = re.compile(r'"(?:127\.[\d.]+|::1|::ffff:127\.[\d.]+)"')


def write_documents(folder: Path, ran: Path) -> None:
    """Write the documents of the commands, and a file for every module's name that notes in `ran` that it has run."""
    text = "It was the best of times, it was the worst of times.\n"
    (folder / "text.txt").write_text(text * 40)
    (folder / "line.txt").write_text(text[:5])
    (folder / "rows.jsonl").write_text(f'{{"text": "{text[:-1]}"}}\n' * 3)
    (folder / "a.csv").write_text("document,index,word,bits\na,0,It,1.5\na,1,was,2\n")
    (folder / "lines.yaml").write_text(TASK)
    names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), "xlexport_ops", "usercustomize"}
    for name in filter(str.isidentifier, names):
        (folder / f"{name}.py").write_text(PLANTED.format(str(ran)))


def run_in(folder: Path, home: Path, line: str, bundle: Path, checkpoint: Path, trace: Path | None) -> tuple[int, str]:
    """Run a line without the variables of this process; return its status and standard error.

    A server gets one request, and Ctrl-C.

    Args:
        trace: file for all calls that use the network, if `strace` is installed and works here; None: none.
    """
    line = line.replace("BUNDLE", str(bundle)).replace("CHECKPOINT", str(checkpoint))
    command = line.replace("python", sys.executable, 1).split() if line.startswith("python") else line.split()
    tracer = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=network", "-o", str(trace)]
    if trace and shutil.which("strace") and subprocess.run([*tracer, "true"], check=False).returncode == 0:
        command = [*tracer, *command]
    environment = {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(home),
        **{name: str(home.with_name(name)) for name in ("MPLCONFIGDIR", "HF_HOME")},  # caches, which send nothing
    }
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **streams) as process:
        if "serve" in command:
            assert process.stdout is not None
            url = f"{process.stdout.readline().strip()}/completions"
            request = Request(url, b'{"prompt": "a"}', {"content-type": "application/json"})
            with urlopen(request, timeout=60) as answer:
                assert answer.status == 200
            os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=500)
    return process.returncode, error


def remote_calls(trace: Path) -> list[str]:
    """Return the calls that reach for another machine, or for its name."""
    lines = trace.read_text(errors="replace").splitlines() if trace.exists() else []
    return [line for line in lines if CALLS.search(line) and (not LOOPBACK.search(line) or "htons(53)" in line)]
