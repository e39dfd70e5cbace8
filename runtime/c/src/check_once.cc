#include "check_once.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "errors.h"
#include "known_answers.h"
#include "safetensors.h"
#include "sha256.h"
#include "xlruntime.h"

#if defined(_WIN32)
#include <io.h>
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#endif

extern "C" const char* xlexport_ops_instruction_set();

namespace xlruntime {
namespace {

namespace fs = std::filesystem;

constexpr double kUnremembered = 0.2;  // seconds that a check may take each time

#if defined(_WIN32)
constexpr const char *kHome = "USERPROFILE", *kNowhere = "NUL";
#else
constexpr const char *kHome = "HOME", *kNowhere = "/dev/null";
#endif

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The folder of the verdicts, which is Python's; without a home, one that nobody can make.
fs::path checks_folder() {
  const std::string chosen = variable("XDG_CACHE_HOME"), home = variable(kHome);
  const fs::path cache = chosen.empty() ? fs::path(home) / ".cache" : fs::path(chosen);
  return (cache.is_absolute() ? cache : fs::path(kNowhere)) / "xlexport" / "checks";
}

bool is_writable(const fs::path& folder) {
#if defined(_WIN32)
  return _access(folder.string().c_str(), 2) == 0;
#else
  return access(folder.c_str(), W_OK) == 0;
#endif
}

// The name of the processor, and on Linux the instructions that it has.
std::string processor() {
  std::map<std::string, std::string> found;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    found.emplace(line.substr(0, line.find_first_of("\t:")), line.substr(std::min(line.find(':'), line.size())));
  }
  std::string text = variable("PROCESSOR_IDENTIFIER");  // of Windows
  for (const char* name : {"model name", "flags", "CPU part", "Features"}) text += found[name];  // x86, ARM
  return text;
}

// The digest of the file that has this code, the kernels included; the version if nobody says which file that is.
std::string own_digest() {
#if defined(_WIN32)
  HMODULE library = nullptr;
  char file[MAX_PATH] = "";
  GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                     reinterpret_cast<const char*>(&own_digest), &library);
  GetModuleFileNameA(library, file, MAX_PATH);
#else
  Dl_info place{};
  dladdr(reinterpret_cast<const void*>(&own_digest), &place);
  const char* const file = place.dli_fname == nullptr ? "" : place.dli_fname;
#endif
  try {
    return sha256(read_file(file));
  } catch (const Error&) {
    return xlr_version();
  }
}

// The digest of all that may change the numbers.
std::string verdict_name(const Model& model, bool kernels) {
  static const std::string machine = processor() + "\n" + own_digest();
  const char* const level = kernels ? xlexport_ops_instruction_set() : "none";
  return sha256(model.bundle().digest + "\n" + machine + "\n" + model.ort().version() + "\n" + level);
}

}  // namespace

Checked check_once(const std::function<std::shared_ptr<Model>(bool)>& open, bool kernels) {
  Checked checked{open(kernels), ""};
  Model& model = *checked.model;
  if (!has_known_answers(model)) return checked;
  const fs::path folder = checks_folder(), verdict = folder / verdict_name(model, kernels);
  std::error_code ignored;  // a cache may be missing or full
  if (fs::is_regular_file(verdict, ignored)) return checked;
  if (fs::create_directories(folder, ignored)) fs::permissions(folder, fs::perms::owner_all, ignored);
  const double seconds = is_writable(folder) ? std::numeric_limits<double>::infinity() : kUnremembered;
  const Check check = *check_known_answers(checked.model, seconds);
  if (!check.problem || !check.certain) {  // a warning comes once, too
    std::ofstream{verdict};
    fs::permissions(verdict, fs::perms::owner_read | fs::perms::owner_write, ignored);
  }
  if (!check.problem) return checked;
  const std::string problem = model.folder().string() + ": " + *check.problem;
  if (!check.certain) {
    checked.warning = problem + "; here this may be rounding alone.";
    return checked;
  }
  if (!kernels) {
    throw Error(XLR_ERROR_BUNDLE_GRAPH,
                problem + "; so ONNX Runtime computes something else here than where it was converted.",
                "Install another version of ONNX Runtime, or convert the checkpoint again.");
  }
  checked.model.reset();  // its weights, too
  checked = check_once(open, false);
  checked.warning = problem + ", with kernels (" + xlexport_ops_instruction_set() + "); standard operators run.";
  return checked;
}

}  // namespace xlruntime
