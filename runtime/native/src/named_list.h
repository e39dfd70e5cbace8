// Values by name, in the order in which a file has them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xlruntime {

template <class T>
class NamedList {
 public:
  // A name that is there already keeps its place, and gets the new value.
  void add(std::string name, T value) {
    if (T* known = find(name)) {
      *known = std::move(value);
      return;
    }
    places_.emplace(name, entries_.size());
    entries_.emplace_back(std::move(name), std::move(value));
  }

  const T* find(std::string_view name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &entries_[place->second].second;
  }
  T* find(std::string_view name) {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &entries_[place->second].second;
  }
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  std::vector<std::pair<std::string, T>> entries_;
  std::map<std::string, std::size_t, std::less<>> places_;
};

}  // namespace xlruntime
