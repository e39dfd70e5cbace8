"""No command sends anything, writes into the home folder, or runs a file of the current folder."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

from tests.helpers.command_table import all_commands
from tests.helpers.paths import ROOT
from tests.helpers.step_bundles import write_step_bundle
from tests.helpers.tiers import thinned
from xlexport.extras import missing_packages

SIZE = "--n-layer 1 --n-head 2 --d-model 8 --set model.d_head=4 --set model.d_inner=8 --tgt-len 8 --mem-len 8"
TRAIN = f"xlexport train text.txt -o run --steps 2 {SIZE} --batch-size 1 --threads 1"
# A line for each command, and for each way in which it starts processes; BUNDLE is made of CHECKPOINT.
COMMANDS = {
    "bench": "xlexport bench BUNDLE --set rounds=1 --set repeats=1 --threads 1",
    "compare": "xlexport compare a.csv a.csv",
    "completion": "xlexport completion bash",
    "configure": "xlexport configure BUNDLE -o other --mem-len 10",
    "context": "xlexport context BUNDLE text.txt --lengths 2,4 --no-recl",
    "convert": "xlexport convert CHECKPOINT -o converted --segments 2 --threads 1",
    "doctor": "xlexport doctor",
    "evaluate": "xlexport evaluate BUNDLE text.txt --protocol document",
    "generate": "xlexport generate BUNDLE It --max-tokens 3",
    "inspect": "xlexport inspect BUNDLE",
    "plot": "xlexport plot bits BUNDLE text.txt -o bits.png",
    "prepare": "xlexport prepare text.txt -o data",
    "quantize": "xlexport quantize BUNDLE -o int8 --set tokens=2048 --set max_delta_bits=0.5 --threads 1",
    "report": "xlexport report BUNDLE text.txt -o page.html",
    "reproduce": "xlexport reproduce enwik8-base text.txt --bundle BUNDLE",
    "run": "xlexport run steps inputs.npz -o outputs.npz --threads 1",
    "score": "xlexport score BUNDLE text.txt text.txt --processes 2",
    "score --ray": "xlexport score BUNDLE rows.jsonl --field text -o scores --ray --processes 1 --threads 1",
    "serve": "xlexport serve BUNDLE --port 0 --threads 1",
    "train": TRAIN,
    "train by torchrun": f"python -P -m torch.distributed.run --nproc-per-node 1 --no-python {TRAIN}",
    "verify": "xlexport verify BUNDLE CHECKPOINT --segments 2 --threads 1",
    "web": "xlexport web BUNDLE -o site",
    "harness": "python -P -m xlexport.harness --model xlexport --model_args bundle=BUNDLE,threads=1 --tasks lines "
    "--include_path .",
}
NEEDS = {"score --ray": "ray", "harness": "lm-eval", "serve": "serve", "plot": "plot"}
ASKS = {"score --ray", "train by torchrun"}  # for the address or name that this machine has
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
# Calls that reach for another machine, or for the name of one.
REMOTE = re.compile(
    r'^.*\b(?:connect|sendto|sendm+sg)\((?=.*sa_family=AF_INET)(?:.*htons\(53\)|(?!.*"(?:127\.|::1"|::ffff:127\.))).*',
    re.M,
)


def write_documents(folder: Path, ran: Path) -> None:
    """Write the documents of the commands, and a file for every module's name that notes in `ran` that it has run."""
    text = "It was the best of times, it was the worst of times.\n"
    (folder / "text.txt").write_text(text * 40)
    (folder / "rows.jsonl").write_text(f'{{"text": "{text[:-1]}"}}\n' * 3)
    (folder / "a.csv").write_text("document,index,word,bits\na,0,It,1.5\na,1,was,2\n")
    (folder / "lines.yaml").write_text(TASK)
    write_step_bundle(folder / "steps")
    np.savez(folder / "inputs.npz", observation=np.zeros((9, 3), np.float32), active=np.ones(9, bool))
    names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), "xlexport_ops", "usercustomize"}
    for name in filter(str.isidentifier, names):
        (folder / f"{name}.py").write_text(PLANTED.format(str(ran)))


def test_every_command_is_tried() -> None:
    assert set(all_commands()) - {"demo"} <= set(COMMANDS)  # which takes minutes; test_demo.py has a file for it


@pytest.mark.parametrize("name", thinned(COMMANDS, ["score", "serve", "train"], pytest.mark.release))
@pytest.mark.full
def test_command_alone_among_hostile_files(name: str, bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    if name in NEEDS and missing_packages(NEEDS[name]):
        pytest.skip(f"the extra {NEEDS[name]} is not installed")
    if name == "web" and not (ROOT / "runtime/js/dist").is_dir():
        pytest.skip("runtime/js is not built (npm ci && npm run build)")
    folder, home, ran, trace = (tmp_path / name for name in ("here", "home", "ran", "trace"))
    folder.mkdir()
    home.mkdir()
    write_documents(folder, ran)
    trace.touch()
    line = COMMANDS[name].replace("BUNDLE", str(bundle)).replace("CHECKPOINT", str(checkpoint))
    command = re.sub("^python", sys.executable, line).split()
    tracer = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=network", "-o", str(trace)]
    if name not in ASKS and shutil.which("strace") and not subprocess.run([*tracer, "true"], check=False).returncode:
        command = [*tracer, *command]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    caches = {
        name: str(tmp_path / name) for name in ("MPLCONFIGDIR", "HF_HOME", "XDG_CACHE_HOME")
    }  # which send nothing
    with subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": path, "HOME": str(home), **caches},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if name == "serve":
            assert process.stdout is not None
            url = f"{process.stdout.readline().strip()}/completions"
            urlopen(Request(url, b'{"prompt": "a"}', {"content-type": "application/json"}), timeout=60).close()
            os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=500)
    assert process.returncode == 0, error
    assert not ran.exists(), ran.read_text()
    key = ["auth_token"] if name == "score --ray" else []  # of Ray's own clusters
    assert [path.name for path in home.rglob("*") if path.is_file()] == key
    assert REMOTE.findall(trace.read_text(errors="replace")) == []
