// JSON for trusted sizes and untrusted content: config.json and safetensors headers.
// Strict RFC 8259, except that surrogate escapes are refused; nesting and size are bounded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kdtr::model {

struct Json {
  enum Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = kNull;
  bool boolean = false;
  double number = 0;
  std::string text;  // of a string; of a number, its spelling
  std::vector<Json> items;
  std::map<std::string, Json> members;

  const Json* find(const std::string& key) const;
};

// Throws kdtr::Error naming `where` and the byte at fault.
Json parse_json(std::string_view text, const std::string& where);

}  // namespace kdtr::model
