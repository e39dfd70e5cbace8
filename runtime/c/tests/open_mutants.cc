// Open bundles and states of strangers, and feed tokens: for tests/reliability/mutate.py.
//
//     open_mutants ONNXRUNTIME
//
// Each line of the input is BUNDLE<tab>STATE, or BUNDLE<tab> for a fresh stream. The answer is `ok NATS`, `reported` if
// the stream counts scores that were not finite, or the code and the text of an error.
#include <iostream>
#include <string>

#include "xlruntime.hpp"

int main(int, char** arguments) {
  xlr_load_options options = xlr::load_options();
  options.onnxruntime = arguments[1];
  options.threads = 1;
  for (std::string bundle, state; std::getline(std::getline(std::cin, bundle, '\t'), state);) try {
    xlr::Model model(bundle, options);
    xlr::Stream stream = state.empty() ? model.stream() : model.restore(state);
    double nats = 0;
    for (const float log_prob : stream.feed({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}).log_probs()) nats -= log_prob;
    std::cout << (stream.resets() > 0 ? "reported" : "ok " + std::to_string(nats)) << std::endl;
  } catch (const xlr::Error& error) {
    std::cout << error.code() << ' ' << error.what() << std::endl;
  }
}
