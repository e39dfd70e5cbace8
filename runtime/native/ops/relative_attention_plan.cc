#include "relative_attention_plan.h"

namespace xlexport {

OrtStatus* RelativeAttentionPlan::compute(Context& run) const {
  const int64_t empty = 0;
  for (size_t index = 0; index < sizeof outputs / sizeof outputs[0]; ++index) {
    void* data;
    XLEXPORT_TRY(run.output(index, &empty, 1, &data));
  }
  return nullptr;
}

}  // namespace xlexport
