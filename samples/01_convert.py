"""Convert the sample checkpoint to `bundle/` in the current folder, verified against the trained model.

Needs: pip install ./runtime/python '.[cpu,convert]' in a clone. The same as: xlexport convert CHECKPOINT -o bundle
"""

from pathlib import Path

from xlexport import formats
from xlexport.convert import convert
from xlexport.sample import sample_checkpoint

source = formats.load(sample_checkpoint())
report = convert(source, Path("bundle"), force=True, tell=print)
print(f"equal over {report.segments} segments: log-probabilities within {report.max_abs_log_prob_diff:.1e} nats")
