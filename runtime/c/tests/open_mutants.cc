// Open bundles and states of strangers, and feed tokens: for tests/reliability/mutate.py.
//
//     open_mutants ONNXRUNTIME
//
// Each line of the input is BUNDLE or BUNDLE<tab>STATE. The answer is `ok NATS`, `reported` if the stream counts scores
// that were not finite, or the code and the text of an error.
#include <cstdio>
#include <iostream>
#include <map>
#include <string>

#include "xlruntime.h"

int main(int, char** arguments) {
  xlr_load_options options = XLR_LOAD_OPTIONS_INIT;
  options.onnxruntime = arguments[1];
  options.threads = 1;
  const int64_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
  std::map<std::string, xlr_model*> kept;  // of states
  for (std::string line; std::getline(std::cin, line);) {
    const size_t tab = line.find('\t');
    xlr_model*& model = kept[tab == std::string::npos ? "" : line.substr(0, tab)];
    xlr_stream* stream = nullptr;
    const xlr_scores* scores = nullptr;
    xlr_status status = model != nullptr ? XLR_OK : xlr_load(line.substr(0, tab).c_str(), &options, &model);
    if (status == XLR_OK && tab == std::string::npos) status = xlr_stream_open(model, nullptr, 0, &stream);
    if (status == XLR_OK && stream == nullptr) {
      status = xlr_stream_restore(model, line.substr(tab + 1).c_str(), 0, &stream);
    }
    if (status == XLR_OK) status = xlr_stream_feed_ids(stream, ids, 12, &scores);
    double nats = 0;
    for (size_t i = 0; status == XLR_OK && i < scores->count; ++i) nats -= scores->log_probs[i];
    if (status != XLR_OK) std::printf("%s %s\n", xlr_error_code(status), xlr_error_text());
    else if (xlr_stream_resets(stream) > 0) std::puts("reported");
    else std::printf("ok %.9g\n", nats);
    std::fflush(stdout);
    xlr_stream_close(stream);
    if (tab != std::string::npos) continue;
    xlr_model_close(model);
    model = nullptr;
  }
  for (const auto& [bundle, model] : kept) xlr_model_close(model);
}
