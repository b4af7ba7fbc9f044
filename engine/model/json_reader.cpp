#include "json_reader.h"

#include <charconv>

#include "kdtr/error.h"

namespace kdtr::model {
namespace {

constexpr int kMaxDepth = 32;

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json document() {
    Json value = parse(0);
    skip_space();
    if (at_ != text_.size()) refuse("text after the value");
    return value;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(where_ + " byte " + std::to_string(at_), "not valid JSON: " + what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  void expect(char c) {
    skip_space();
    if (peek() != c) refuse(std::string("expected '") + c + "'");
    ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json parse(int depth) {
    if (depth > kMaxDepth) refuse("nested more than 32 deep");
    skip_space();
    Json value;
    switch (peek()) {
      case '{':
        value.kind = Json::kObject;
        ++at_;
        if (accept('}')) return value;
        do {
          skip_space();
          std::string key = string();
          expect(':');
          if (value.members.contains(key)) refuse("repeated key '" + key + "'");
          value.members.emplace(std::move(key), parse(depth + 1));
        } while (accept(','));
        expect('}');
        return value;
      case '[':
        value.kind = Json::kArray;
        ++at_;
        if (accept(']')) return value;
        do {
          value.items.push_back(parse(depth + 1));
        } while (accept(','));
        expect(']');
        return value;
      case '"':
        value.kind = Json::kString;
        value.text = string();
        return value;
      case 't':
      case 'f':
        value.kind = Json::kBool;
        value.boolean = peek() == 't';
        if (!literal(value.boolean ? "true" : "false")) refuse("unknown word");
        return value;
      case 'n':
        if (!literal("null")) refuse("unknown word");
        return value;
      default:
        return number();
    }
  }

  Json number() {
    const std::size_t start = at_;
    const auto digits = [&] {
      const std::size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == first) refuse("expected a value");
      return at_ - first;
    };
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    if (digits() > 1 && zero) refuse("number with a leading zero");
    if (peek() == '.') {
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    Json value;
    value.kind = Json::kNumber;
    value.text = text_.substr(start, at_ - start);
    const char* end = value.text.data() + value.text.size();
    if (std::from_chars(value.text.data(), end, value.number).ec != std::errc())
      refuse("number out of range");
    return value;
  }

  std::string string() {
    if (peek() != '"') refuse("expected a string");
    ++at_;
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) refuse("string without an end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) refuse("control character in a string");
      if (c != '\\') {
        out += c;
        continue;
      }
      const char escape = peek();
      ++at_;
      const std::size_t known = std::string_view("\"\\/bfnrt").find(escape);
      if (escape == 'u') {
        unicode(out);
      } else if (escape != '\0' && known != std::string_view::npos) {
        out += "\"\\/\b\f\n\r\t"[known];
      } else {
        refuse("unknown escape");
      }
    }
  }

  void unicode(std::string& out) {
    unsigned code = 0;
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), 4);
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (error != std::errc() || end != hex.data() + 4) refuse("bad \\u escape");
    if (code >= 0xD800 && code < 0xE000) refuse("surrogate escape");
    at_ += 4;
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0 | (code >> 6));
      out += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      out += static_cast<char>(0xE0 | (code >> 12));
      out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

}  // namespace

const Json* Json::find(const std::string& key) const {
  const auto it = members.find(key);
  return it == members.end() ? nullptr : &it->second;
}

Json parse_json(std::string_view text, const std::string& where) {
  return Parser(text, where).document();
}

}  // namespace kdtr::model
