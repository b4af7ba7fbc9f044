// JSON in and out: a small reader for contracts and results, and text for a writer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kdtr::conform {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;

  Json() = default;
  Json(bool v) : value_(v) {}
  Json(double v) : value_(v) {}
  Json(int v) : value_(static_cast<double>(v)) {}
  Json(long v) : value_(static_cast<double>(v)) {}
  Json(long long v) : value_(static_cast<double>(v)) {}
  Json(std::size_t v) : value_(static_cast<double>(v)) {}
  Json(const char* v) : value_(std::string(v)) {}
  Json(std::string v) : value_(std::move(v)) {}
  Json(std::string_view v) : value_(std::string(v)) {}
  Json(Array v) : value_(std::move(v)) {}
  Json(Object v) : value_(std::move(v)) {}

  // Throws kdtr::Error naming `where` when `text` is not one JSON value.
  static Json parse(std::string_view text, const std::string& where);
  // Sorted keys, no spaces; infinities and NaN, which JSON lacks, become the strings "inf",
  // "-inf" and "nan".
  std::string dump() const;

  // Of another type: "", 0, or an empty list or object.
  const std::string& text() const;
  double number() const;
  const Array& items() const;
  const Object& members() const;
  // A member, or null.
  const Json& operator[](std::string_view key) const;
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

 private:
  std::variant<std::monostate, bool, double, std::string, Array, Object> value_;
};

}  // namespace kdtr::conform
