// Compare the outputs of graphs with the bundle's description: untrusted graphs may return anything.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "manifest.h"

namespace xlruntime {

// Throws ErrorCode::bundle unless an output has the type and the shape that the bundle describes. Named axes other
// than batch and segment may have any size; so may these if they are 0 here.
void require_kind(const std::string& file, const Tensor& tensor, std::string_view dtype,
                  const std::vector<std::int64_t>& shape, std::int64_t batch, std::int64_t segment);

// Throws ErrorCode::bundle if the values of log_prob, top_log_probs, rank, top_ids or entropy are out of range. Scores
// that are not finite pass. Other outputs have no range. `size` counts numbers.
void require_range(const std::string& file, const std::string& name, std::string_view dtype, const void* data,
                   std::size_t size, std::int64_t vocab_size);

}  // namespace xlruntime
