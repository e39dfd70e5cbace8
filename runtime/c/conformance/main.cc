// Run a conformance kit through the C interface.
//
//     xlconformance KIT [--only TEXT] [--within NATS] [--states FOLDER] [--keep FOLDER] [--no-kernels]
//                   [--onnxruntime FILE]
//
// The kit and its actions are described in tests/conformance/README.md of the repository.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "compare.h"
#include "player.h"

namespace {

namespace fs = std::filesystem;
using namespace conformance;
using xlruntime::json::Array;
using xlruntime::json::Object;
using xlruntime::json::Value;

double bound(const Object& case_, const char* name, double own) {
  const Value* within = case_.find("within");
  return within == nullptr ? own : std::max(own, field<double>(*within->as<Object>(), name));
}

// Play one action, and compare what it gives with what the case expects.
void play(Player& player, const Object& action, const std::string& where, Comparison& compared) {
  const Value* error = action.find("error");
  const std::string wanted = error == nullptr ? "" : field<std::string>(*error->as<Object>(), "code");
  try {
    const Object found = player.play(action);
    if (error == nullptr) {
      compared.add(field<Object>(action, "expect"), found, where);
    } else {
      compared.problems.push_back(where + ": nothing was refused, expected " + wanted);
    }
  } catch (const Refusal& refusal) {
    if (refusal.code == wanted) return;
    compared.problems.push_back(where + ": " + refusal.code + ": " + refusal.what() + "; expected " +
                                (wanted.empty() ? "no error" : wanted));
  } catch (const NotGiven& missing) {
    compared.not_given.insert(missing.what);
  }
}

// Play a case, and return how it differs from what the kit expects. Throws NotTried.
Comparison run_case(const Options& options, const std::string& name, std::string& onnxruntime) {
  Comparison compared{options.within, options.within};
  try {
    const Object case_ = read_object(options.kit / "cases" / fs::u8path(name + ".json"));
    compared.low_precision = case_.find("within") != nullptr;
    compared.nats = bound(case_, "nats", options.within);
    compared.totals = bound(case_, "totals", options.within);
    Player player(options);
    int number = 0;
    for (const Value& each : field<Array>(case_, "actions")) {
      const Object& action = *each.as<Object>();
      const std::string what = field<std::string>(action, "do");
      play(player, action, name + ", action " + std::to_string(number++) + " (" + what + ")", compared);
      if (player.model() != nullptr) onnxruntime = xlr_model_get_info(player.model())->onnxruntime;
      if (action.find("keep") == nullptr || options.keep.empty()) continue;
      const fs::path target = options.keep / fs::u8path(field<std::string>(action, "keep") + ".safetensors");
      fs::remove(target);
      fs::copy_file(player.state(field<std::string>(action, "as")), target);
    }
  } catch (const NotTried&) {
    if (compared.problems.empty()) throw;
  } catch (const std::exception& error) {
    compared.problems.push_back(name + ": exception: " + error.what());
  }
  return compared;
}

int run(const Options& options) {
  if (!options.keep.empty()) fs::create_directories(options.keep);
  int passed = 0, played = 0;
  double largest = 0, largest_with_bounds = 0;
  std::set<std::string> not_given;
  std::vector<std::string> not_tried;
  std::string onnxruntime = "unknown";
  const Object kit = read_object(options.kit / "kit.json");
  for (const Value& each : field<Array>(kit, "cases")) {
    const std::string& name = *each.as<std::string>();
    if (name.find(options.only) == std::string::npos) continue;
    try {
      const Comparison found = run_case(options, name, onnxruntime);
      double& most = found.low_precision ? largest_with_bounds : largest;
      most = std::max(most, found.largest);
      ++played;
      passed += found.problems.empty();
      not_given.insert(found.not_given.begin(), found.not_given.end());
      std::printf("%s  %s  %.1e\n", found.problems.empty() ? "passed" : "failed", name.c_str(), found.largest);
      for (const std::string& problem : found.problems) std::printf("    %s\n", problem.c_str());
    } catch (const NotTried& left_out) {
      not_tried.push_back(name + " (" + left_out.reason + ")");
    }
    std::fflush(stdout);
  }
  for (const std::string& each : not_tried) std::printf("not tried: %s\n", each.c_str());
  std::string list;
  for (const std::string& each : not_given) list += (list.empty() ? "" : ", ") + each;
  if (!list.empty()) std::printf("not given: %s\n", list.c_str());
  std::printf("runtime: C, ONNX Runtime %s\n", onnxruntime.c_str());
  std::printf("kernels: %s\n", options.kernels ? xlr_instruction_set() : "none");
  std::printf("%d of %d cases passed; largest difference %.1e, with low precision %.1e\n", passed, played, largest,
              largest_with_bounds);
  return passed < played || played == 0 ? 1 : 0;
}

// Return whether the arguments are right.
bool read_arguments(int count, char** arguments, Options& options) {
  std::string within = "1e-4", states, keep;  // nats: other processors and versions of ONNX Runtime round otherwise
  const std::map<std::string, std::string*> texts = {{"--only", &options.only},
                                                     {"--within", &within},
                                                     {"--states", &states},
                                                     {"--keep", &keep},
                                                     {"--onnxruntime", &options.onnxruntime}};
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto text = texts.find(argument);
    if (argument == "--no-kernels") {
      options.kernels = false;
    } else if (text != texts.end() && i + 1 < count) {
      *text->second = arguments[++i];
    } else if (argument.rfind("--", 0) != 0 && options.kit.empty()) {
      options.kit = argument;
    } else {
      return false;
    }
  }
  char* end = nullptr;
  options.within = std::strtod(within.c_str(), &end);
  options.states = states;
  options.keep = keep;
  return !within.empty() && *end == '\0' && !options.kit.empty();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!read_arguments(argc, argv, options)) {
    std::fputs("xlconformance KIT [--only TEXT] [--within NATS] [--states FOLDER] [--keep FOLDER] [--no-kernels] "
               "[--onnxruntime FILE]\n",
               stderr);
    return 2;
  }
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "xlconformance: %s\n", error.what());
    return 2;
  }
}
