// From the text of bundle.json to a checked Bundle.
#include "manifest_read.h"

#include <algorithm>
#include <set>

#include "error.h"
#include "read_limits.h"
#include "messages.h"
#include "sha256.h"
#include "unicode.h"

namespace xlruntime {

namespace {

constexpr Limits kManifestLimits{std::int64_t{1} << 26, 1'000'000};
constexpr const char* kDigestKey = "manifest_sha256";
constexpr const char* kEncoderKey = "encoder";
constexpr std::size_t kLongestName = 255;  // bytes; the most on most file systems

std::string shell_quoted(const std::string& text) {
  const auto is_safe = [](char mark) {
    return (mark >= 'a' && mark <= 'z') || (mark >= 'A' && mark <= 'Z') || (mark >= '0' && mark <= '9') ||
           std::string_view("_@%+=:,./-").find(mark) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_safe)) return text;
  std::string quoted = "'";
  for (const char mark : text) quoted += mark == '\'' ? "'\"'\"'" : std::string(1, mark);
  return quoted + "'";
}

// The command that makes the bundle again, as far as a manifest of another version has its source.
std::string conversion(const json::Object& fields, const std::string& where) {
  std::string source = "CHECKPOINT", dtype;
  const auto* provenance = fields.find("provenance");
  const auto* provenance_fields = provenance == nullptr ? nullptr : provenance->as<json::Object>();
  const auto* sources = provenance_fields == nullptr ? nullptr : provenance_fields->find("sources");
  const auto* by_name = sources == nullptr ? nullptr : sources->as<json::Object>();
  // A checkpoint of several files is a folder, and manifests do not have its name.
  if (by_name != nullptr && by_name->size() == 1) {
    const std::string& name = by_name->members[0].first;
    if (is_printable(name) && !name.empty()) source = name;
  }
  if (const auto* precision = fields.find("precision")) {
    for (const char* known : {"float16", "int8", "weight-int8", "weight-int4"}) {
      const auto* text = precision->as<std::string>();
      if (text != nullptr && *text == known) dtype = std::string(" --dtype ") + known;
    }
  }
  const std::size_t end = where.rfind('/');
  const std::string folder = end == std::string::npos ? "." : end == 0 ? "/" : where.substr(0, end);
  return "xlexport convert " + shell_quoted(source) + " -o " + shell_quoted(folder) + " --force" + dtype;
}

void check_version(const json::Value& value, const std::string& where) {
  const auto* fields = value.as<json::Object>();
  const json::Value* version = fields == nullptr ? nullptr : fields->find("format_version");
  if (version == nullptr || !version->is_integer()) {
    throw Error(ErrorCode::bundle, where + ": no integer format_version, so not a bundle that xlexport wrote.");
  }
  const std::string found = json::dump(*version).substr(0, 20), own = std::to_string(kFormatVersion);
  if (clamped(*version) > kFormatVersion) {
    throw Error(ErrorCode::bundle,
                where + ": format version " + found + " is newer than " + own + ", the newest this xlexport reads.",
                "Install a newer xlexport, or convert the checkpoint again.");
  }
  if (clamped(*version) < kFormatVersion) {
    throw Error(ErrorCode::bundle,
                where + ": format version " + found + " is of an earlier xlexport, this one reads " + own + ".",
                "Convert the checkpoint again: " + conversion(*fields, where));
  }
}

// Take the digest out of a manifest, and refuse the manifest if it was changed.
void check_digest(json::Object& fields, const std::string& where) {
  const json::Value* found = fields.find(kDigestKey);
  if (found == nullptr) return;
  const json::Value stated = *found;
  fields.erase(kDigestKey);
  if (stated.is_null()) return;
  const auto* text = stated.as<std::string>();
  if (text != nullptr && *text == sha256(json::dump(fields, json::Order::sorted))) return;
  throw Error(ErrorCode::bundle,
              where + ": was changed since it was written (its " + kDigestKey + " differs).",
              std::string("Copy it again; if you changed it on purpose, remove ") + kDigestKey + ".");
}

// Refuse a bundle whose steps need an encoded source: without it they would compute something else.
void check_kind(json::Object& fields, const std::string& where) {
  const json::Value* encoder = fields.find(kEncoderKey);
  if (encoder == nullptr) return;
  if (!encoder->is_null()) {
    throw Error(ErrorCode::bundle, where + ": an encoder-decoder, which this runtime does not run.",
                "Run it with the Python package: xlexport translate, or xlruntime.load_translator.");
  }
  fields.erase(kEncoderKey);
}

// Whether a file name stays inside a folder, and a message can show it.
bool is_file_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.size() > kLongestName) return false;
#ifdef _WIN32
  if (name.find_first_of("\\:") != std::string::npos) return false;
#endif
  return name.find('/') == std::string::npos && is_printable(name);
}

void check_files(const Bundle& bundle, const std::string& where) {
  std::vector<std::string> outside, unlisted;
  for (const auto& [name, digest] : bundle.files) {
    if (!is_file_name(name)) outside.push_back(python_ascii(name));
  }
  if (!outside.empty()) {
    throw Error(ErrorCode::bundle, where + ": file names must stay inside the bundle, found " +
                                       ("[" + joined(outside, ", ") + "]").substr(0, 200) + ".");
  }
  std::set<std::string> used;
  for (const auto& [purpose, graph] : bundle.graphs) used.insert(graph.file);
  if (bundle.tokenizer.file) used.insert(*bundle.tokenizer.file);
  if (std::any_of(bundle.memory.begin(), bundle.memory.end(),
                  [](const Memory& entry) { return entry.first_value.has_value(); })) {
    used.insert(kFirstMemoryFile);
  }
  const NamedList<FileDigest> guarded = bundle.guarded_files();
  for (const std::string& name : used) {
    if (!guarded.contains(name)) unlisted.push_back(name);
  }
  if (!unlisted.empty()) {
    throw Error(ErrorCode::bundle,
                where + ": files are used but have no digest: " + named(joined(unlisted, ", ")) + ".",
                "Convert it again.");
  }
}

}  // namespace

Bundle Bundle::from_json(std::string_view text, const std::string& where) {
  Budget budget(kManifestLimits, where, ErrorCode::bundle, "Convert the checkpoint again.");
  json::Value value = json::parse(text, budget);
  check_version(value, where);
  check_digest(*value.as<json::Object>(), where);
  check_kind(*value.as<json::Object>(), where);
  Bundle bundle;
  Problems problems;
  read_manifest_fields(value, bundle, problems);
  if (problems.count() > 0) {
    throw Error(ErrorCode::bundle, where + ": a field is missing or malformed (" + problems.text() + ").",
                "Convert it again.");
  }
  if (const auto found = contradictions(bundle); !found.empty()) {
    throw Error(ErrorCode::bundle, where + ": " + joined(found, "; ") + ".", "Convert it again.");
  }
  check_files(bundle, where);
  return bundle;
}

}  // namespace xlruntime
