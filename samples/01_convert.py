"""Convert the sample checkpoint to `bundle/` in the current folder, verified against the trained model.

Needs: pip install ./runtime/python '.[cpu,convert]' in a clone. The same as: xlexport convert CHECKPOINT -o bundle
"""

import xlexport
from xlexport.sample import sample_checkpoint

report = xlexport.convert(sample_checkpoint(), "bundle", force=True, tell=print).report
print(f"equal over {report.segments} segments: log-probabilities within {report.max_abs_log_prob_diff:.1e} nats")
