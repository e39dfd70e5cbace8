"""Convert the sample checkpoint to `bundle/` in the current folder, verify it against the trained model, and score.

Needs: pip install ./runtime/python '.[cpu,convert]' in a clone. The same as: xlexport convert CHECKPOINT -o bundle
"""

import xlexport
from xlexport.sample import sample_checkpoint

report = xlexport.convert(sample_checkpoint(), "bundle", force=True, tell=print).report
print(f"equal over {report.segments} segments: log-probabilities within {report.max_abs_log_prob_diff:.1e} nats")
for record in xlexport.score("bundle", __file__):
    print(f"{record['document']}: {record['tokens']:,} tokens, {record['bits_per_byte']:.4f} bits per byte")
