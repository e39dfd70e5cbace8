// Streams of several documents in threads that share one model, and a fork of one of them.
//
//     stream_cpp BUNDLE
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "xlruntime.hpp"

namespace {

double bits(const xlr::Scores& scores) {
  double sum = 0;
  for (const float log_prob : scores.log_probs()) sum -= log_prob / std::log(2.0);
  return sum;
}

// The bits of a text that ends: the last tokens show when it does.
double bits_of(xlr::Stream& stream, const std::string& text) {
  const double fed = bits(stream.feed(text));
  return fed + bits(stream.flush());
}

int run(const std::string& bundle) {
  xlr::Model model(bundle);
  std::printf("%s, %lld tokens in the vocabulary\n", model.info().architecture,
              static_cast<long long>(model.info().vocab_size));

  const std::vector<std::string> documents{"A first document, about whales.", "A second one, about ships and the sea."};
  std::vector<double> found(documents.size());
  std::vector<std::string> problems(documents.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    threads.emplace_back([&, i] {  // a stream belongs to its thread
      try {
        xlr::Stream stream = model.stream();
        found[i] = bits_of(stream, documents[i]);
      } catch (const xlr::Error& error) {
        problems[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    std::printf("%s %.2f bits %s\n", documents[i].c_str(), found[i], problems[i].c_str());
  }

  xlr::Stream stream = model.stream(xlr::settings(64));
  stream.feed("The captain said ");
  xlr::Stream twin = stream.fork();
  std::printf("yes: %.2f bits, no: %.2f bits\n", bits_of(stream, "yes."), bits_of(twin, "no."));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: stream_cpp BUNDLE\n");
    return 1;
  }
  try {
    return run(argv[1]);
  } catch (const xlr::Error& error) {
    std::fprintf(stderr, "stream_cpp: %s\n", error.what());
    return 1;
  }
}
