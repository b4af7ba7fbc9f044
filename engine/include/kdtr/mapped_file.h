// Whole files as read-only bytes: mapped, or read into memory that starts on a 256-byte boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace kdtr {

// A regular file, open for reading. Closed by its destructor.
class InputFile {
 public:
  InputFile() = default;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Whether `path` could be opened and is a regular file, so that it has a size.
  bool open(const char* path) {
#if defined(_WIN32)
    handle_ = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                          OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    LARGE_INTEGER size;
    if (handle_ == INVALID_HANDLE_VALUE || !GetFileSizeEx(handle_, &size)) return false;
    size_ = static_cast<std::uint64_t>(size.QuadPart);
    return true;
#else
    fd_ = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    size_ = static_cast<std::uint64_t>(status.st_size);
    return true;
#endif
  }

  ~InputFile() {
#if defined(_WIN32)
    if (handle_ != INVALID_HANDLE_VALUE) CloseHandle(handle_);
#else
    if (fd_ >= 0) ::close(fd_);
#endif
  }

  std::uint64_t size() const { return size_; }

  // Fills `into` from the current position. False when the file ends first or cannot be read.
  bool read(std::span<std::byte> into) {
    while (!into.empty()) {
#if defined(_WIN32)
      DWORD got = 0;
      const DWORD want = into.size() < (1u << 30) ? static_cast<DWORD>(into.size()) : 1u << 30;
      if (!ReadFile(handle_, into.data(), want, &got, nullptr) || got == 0) return false;
#else
      const ssize_t got = ::read(fd_, into.data(), into.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
#endif
      into = into.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }

  // The file's `size` bytes as a mapping, or null. Not for empty files, which cannot be mapped.
  const std::byte* map() {
    if (size_ == 0 || size_ > SIZE_MAX) return nullptr;
#if defined(_WIN32)
    HANDLE mapping = CreateFileMappingA(handle_, nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (mapping == nullptr) return nullptr;
    void* p = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
    CloseHandle(mapping);
    return static_cast<const std::byte*>(p);
#else
    void* p = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, fd_, 0);
    return p == MAP_FAILED ? nullptr : static_cast<const std::byte*>(p);
#endif
  }

  static void unmap(const std::byte* p, std::size_t size) {
#if defined(_WIN32)
    (void)size;
    UnmapViewOfFile(p);
#else
    ::munmap(const_cast<std::byte*>(p), size);
#endif
  }

 private:
#if defined(_WIN32)
  HANDLE handle_ = INVALID_HANDLE_VALUE;
#else
  int fd_ = -1;
#endif
  std::uint64_t size_ = 0;
};

// Owns bytes that are either a mapping or 256-aligned memory.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapped_(other.mapped_) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~Block() {
    if (data_ == nullptr) return;
    if (mapped_) {
      InputFile::unmap(data_, size_);
    } else {
      ::operator delete(const_cast<std::byte*>(data_), kAlign);
    }
  }

  // Both give an empty block (`bool` false) on failure.
  static Block read(InputFile& file, std::uint64_t size) {
    Block b;
    if (size > SIZE_MAX) return b;
    b.size_ = static_cast<std::size_t>(size);
    auto* p = static_cast<std::byte*>(
        ::operator new(b.size_ > 0 ? b.size_ : std::size_t{1}, kAlign, std::nothrow));
    b.data_ = p;
    if (p == nullptr || !file.read({p, b.size_})) return Block();
    return b;
  }
  static Block map(InputFile& file) {
    Block b;
    b.data_ = file.map();
    b.size_ = static_cast<std::size_t>(file.size());
    b.mapped_ = true;
    return b;
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  static constexpr std::align_val_t kAlign{256};
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool mapped_ = false;
};

}  // namespace kdtr
