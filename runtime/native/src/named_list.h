// Values by name, in the order in which a file has them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xlruntime {

template <class T>
class NamedList {
 public:
  void add(std::string name, T value) { entries_.emplace_back(std::move(name), std::move(value)); }

  const T* find(std::string_view name) const {
    for (const auto& [known, value] : entries_) {
      if (known == name) return &value;
    }
    return nullptr;
  }
  T* find(std::string_view name) { return const_cast<T*>(static_cast<const NamedList*>(this)->find(name)); }
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  std::vector<std::pair<std::string, T>> entries_;
};

}  // namespace xlruntime
