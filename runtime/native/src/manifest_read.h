// Parts of reading a manifest that are files of their own.
#pragma once

#include <string>
#include <vector>

#include "json_fields.h"
#include "manifest.h"

namespace xlruntime {

// Read the fields of a manifest strictly. What they say together is not compared yet, apart from single objects.
void read_manifest_fields(const json::Value& fields, Bundle& bundle, Problems& problems);

// Contradictions between parts of the manifest.
std::vector<std::string> contradictions(const Bundle& bundle);

}  // namespace xlruntime
