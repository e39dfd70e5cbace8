// Compare the known answers of a bundle once on each machine, and remember that it has reproduced them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model.h"

namespace xlruntime {

struct Checked {
  std::shared_ptr<Model> model;
  std::string warning;  // in one line; empty: nothing differs
};

// Open a bundle that reproduces its known answers, or has none: with kernels if `kernels`, unless these differ.
//
// Throws XLR_ERROR_BUNDLE_GRAPH: standard operators differ, too.
Checked check_once(const std::function<std::shared_ptr<Model>(bool kernels)>& open, bool kernels);

}  // namespace xlruntime
