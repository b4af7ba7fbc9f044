#include "json.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "kdtr/error.h"

namespace kdtr::conform {
namespace {

constexpr int kMaxDepth = 64;

class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json document() {
    Json value = read(0);
    space();
    if (at_ != text_.size()) bad("trailing text");
    return value;
  }

 private:
  [[noreturn]] void bad(const char* what) const {
    fail(where_, std::string("JSON: ") + what + " at byte " + std::to_string(at_));
  }
  void space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }
  Json read(int depth) {
    if (depth > kMaxDepth) bad("too deep");
    space();
    if (at_ >= text_.size()) bad("unexpected end");
    const char c = text_[at_];
    if (c == '"') return string();
    if (take('{')) {
      Json::Object members;
      if (take('}')) return members;
      do {
        space();
        std::string key = string();
        if (!take(':')) bad("want ':'");
        members.insert_or_assign(std::move(key), read(depth + 1));
      } while (take(','));
      if (!take('}')) bad("want '}'");
      return members;
    }
    if (take('[')) {
      Json::Array items;
      if (take(']')) return items;
      do items.push_back(read(depth + 1));
      while (take(','));
      if (!take(']')) bad("want ']'");
      return items;
    }
    if (word("true")) return true;
    if (word("false")) return false;
    if (word("null")) return {};
    double number = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error != std::errc{}) bad("want a value");
    at_ = static_cast<std::size_t>(end - text_.data());
    return number;
  }
  unsigned hex4() {
    unsigned code = 0;
    const auto [end, error] = std::from_chars(
        text_.data() + at_, text_.data() + std::min(at_ + 4, text_.size()), code, 16);
    if (error != std::errc{} || end != text_.data() + at_ + 4) bad("want four hex digits");
    at_ += 4;
    return code;
  }
  std::string string() {
    if (at_ >= text_.size() || text_[at_] != '"') bad("want a string");
    ++at_;
    std::string out;
    for (; at_ < text_.size() && text_[at_] != '"';) {
      const char c = text_[at_++];
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ >= text_.size()) break;
      switch (const char e = text_[at_++]) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'u': {
          std::uint32_t code = hex4();
          if (code >= 0xD800 && code < 0xDC00 && word("\\u"))
            code = 0x10000 + ((code - 0xD800) << 10) + (hex4() - 0xDC00);
          utf8(out, code);
          break;
        }
        default:
          out += e;
      }
    }
    if (at_ >= text_.size()) bad("unterminated string");
    ++at_;
    return out;
  }
  static void utf8(std::string& out, std::uint32_t code) {
    const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | (code >> 6));
      put(0x80 | (code & 63));
    } else if (code < 0x10000) {
      put(0xE0 | (code >> 12));
      put(0x80 | ((code >> 6) & 63));
      put(0x80 | (code & 63));
    } else {
      put(0xF0 | (code >> 18));
      put(0x80 | ((code >> 12) & 63));
      put(0x80 | ((code >> 6) & 63));
      put(0x80 | (code & 63));
    }
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

void quote(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace

Json Json::parse(std::string_view text, const std::string& where) {
  return Reader(text, where).document();
}

std::string Json::dump() const {
  std::string out;
  if (is_null()) return "null";
  if (const auto* b = std::get_if<bool>(&value_)) return *b ? "true" : "false";
  if (const auto* n = std::get_if<double>(&value_)) {
    if (std::isnan(*n)) return "\"nan\"";
    if (std::isinf(*n)) return *n < 0 ? "\"-inf\"" : "\"inf\"";
    char digits[40];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, *n);
    return {digits, end};
  }
  if (const auto* s = std::get_if<std::string>(&value_)) {
    quote(out, *s);
    return out;
  }
  if (const auto* a = std::get_if<Array>(&value_)) {
    out = "[";
    for (const Json& item : *a) out += (out.size() > 1 ? "," : "") + item.dump();
    return out + "]";
  }
  out = "{";
  for (const auto& [key, value] : members()) {
    if (out.size() > 1) out += ',';
    quote(out, key);
    out += ':' + value.dump();
  }
  return out + "}";
}

const std::string& Json::text() const {
  static const std::string none;
  const auto* s = std::get_if<std::string>(&value_);
  return s == nullptr ? none : *s;
}

double Json::number() const {
  const auto* n = std::get_if<double>(&value_);
  return n == nullptr ? 0 : *n;
}

const Json::Array& Json::items() const {
  static const Array none;
  const auto* a = std::get_if<Array>(&value_);
  return a == nullptr ? none : *a;
}

const Json::Object& Json::members() const {
  static const Object none;
  const auto* o = std::get_if<Object>(&value_);
  return o == nullptr ? none : *o;
}

const Json& Json::operator[](std::string_view key) const {
  static const Json none;
  const Object& all = members();
  const auto it = all.find(key);
  return it == all.end() ? none : it->second;
}

}  // namespace kdtr::conform
