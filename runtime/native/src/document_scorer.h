// Score a whole document in segments, at constant memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "stream.h"
#include "token_source.h"

namespace xlruntime {

// Scores of consecutive tokens, with their places in the document, and detail if it was asked for.
struct DocumentScores : Scores {
  Ids starts, ends;
  Ids rank;                     // of each token; 1 is the likeliest
  std::vector<double> entropy;  // of each prediction, in nats
  Ids top_ids;                  // (n, k) the likeliest tokens, best first
  std::vector<double> top_log_probs;
};

// The score of a whole document.
struct DocumentTotal {
  TextCounts counts;
  std::int64_t tokens = 0, scored_tokens = 0, unknown_tokens = 0;
  std::int64_t scored_chars = 0, scored_bytes = 0;
  double nats = 0;
};

struct ScoreOptions {
  std::optional<std::int64_t> bos;     // token that the model reads before the document
  std::optional<std::int64_t> detail;  // likeliest tokens to list
};

// `take` gets the scores of each step, and returns whether to go on; without a total if it has stopped.
//
// Throws ErrorCode::option, ErrorCode::text, ErrorCode::token, ErrorCode::file, ErrorCode::bundle.
std::optional<DocumentTotal> score_document(Model& model, const EvaluationSettings& evaluation,
                                            const Document& document, const ScoreOptions& options,
                                            const std::function<bool(const DocumentScores&)>& take);

// Continue a prompt with a model that reads each document in one step.
void generate_whole(Model& model, const EvaluationSettings& evaluation, const Ids& prompt, std::size_t most,
                    const Sampling& sampling, const std::function<bool(std::int64_t)>& take);

}  // namespace xlruntime
