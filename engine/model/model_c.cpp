// The C interface of the decoder: exceptions become messages.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "decoder.h"
#include "kdtr/error.h"
#include "kdtr/model.h"

using kdtr::model::Alone;
using kdtr::model::Decoder;

struct kdtr_decoder {
  std::unique_ptr<kdtr::model::Communicator> ranks = std::make_unique<Alone>();
  std::optional<Decoder> decoder;
  std::string error;
};

namespace {

template <class F>
int guarded(kdtr_decoder* d, F&& body) {
  try {
    d->error.clear();
    body();
    return KDTR_OK;
  } catch (const std::exception& e) {
    d->error = e.what();
  }
  return KDTR_ERROR;
}

Decoder& opened(kdtr_decoder* d) {
  if (!d->decoder) kdtr::fail("decoder", "not open: opening it failed");
  return *d->decoder;
}

std::size_t count(const char* what, std::int32_t n) {
  KDTR_CHECK(n >= 0, "decoder", what, "0 or more", n);
  return static_cast<std::size_t>(n);
}

}  // namespace

extern "C" {

int kdtr_decoder_open(const char* folder, const kdtr_decoder_options* options,
                      kdtr_decoder** decoder) {
  auto* d = *decoder = new kdtr_decoder;
  return guarded(d, [&] {
    KDTR_CHECK(options->struct_size == sizeof(kdtr_decoder_options), "kdtr_decoder_open",
               "size of the options", sizeof(kdtr_decoder_options), options->struct_size);
    KDTR_CHECK(options->precision == 0 || options->precision == 1, "kdtr_decoder_open", "precision",
               "0 (f32) or 1 (bf16)", options->precision);
    if (options->group != nullptr) {
      kdtr::model::Group group;
      std::copy_n(options->group, group.size(), group.begin());
      d->ranks = kdtr::model::join_group(group, options->rank, options->world);
    } else if (options->world > 1) {
      kdtr::fail("kdtr_decoder_open", "ranks", "a group of kdtr_decoder_group", "none");
    }
    d->decoder.emplace(
        folder,
        kdtr::model::Options{options->requests, options->max_context, options->page_size,
                             options->max_budget, options->precision == 1},
        kdtr::model::backend_memory(), *d->ranks);
  });
}

int kdtr_decoder_group(uint8_t id[KDTR_GROUP_BYTES], char* error, size_t size) {
  try {
    std::ranges::copy(kdtr::model::new_group(), id);
    return KDTR_OK;
  } catch (const std::exception& e) {
    if (size > 0) std::snprintf(error, size, "%s", e.what());
  }
  return KDTR_ERROR;
}

void kdtr_decoder_close(kdtr_decoder* decoder) { delete decoder; }

const char* kdtr_decoder_error(const kdtr_decoder* decoder) { return decoder->error.c_str(); }

int64_t kdtr_decoder_size(const kdtr_decoder* decoder, const char* name) {
  const std::string_view key = name;
  if (!decoder->decoder) return -1;
  const Decoder& d = *decoder->decoder;
  if (key == "vocab") return d.config().vocab;
  if (key == "hidden") return d.config().hidden;
  if (key == "layers") return d.config().layers;
  if (key == "depth") return d.depth();
  if (key == "row") return d.config().row();
  if (key == "eos") return d.config().eos;
  return -1;
}

int kdtr_decoder_prefill(kdtr_decoder* decoder, int32_t request, const int32_t* ids, int32_t n,
                         int32_t* token) {
  return guarded(decoder,
                 [&] { *token = opened(decoder).prefill(request, {ids, count("ids", n)}); });
}

int kdtr_decoder_greedy(kdtr_decoder* decoder, const int32_t* requests, int32_t n,
                        int32_t* tokens) {
  return guarded(decoder, [&] {
    const std::size_t r = count("requests", n);
    opened(decoder).greedy({requests, r}, {tokens, r});
  });
}

int kdtr_decoder_tree(kdtr_decoder* decoder, const int32_t* requests, int32_t n, int32_t budget,
                      int32_t* accept_len, int32_t* tokens) {
  return guarded(decoder, [&] {
    Decoder& d = opened(decoder);
    const std::size_t r = count("requests", n);
    d.tree({requests, r}, budget, {accept_len, r},
           {tokens, r * static_cast<std::size_t>(d.depth() + 1)});
  });
}

int kdtr_decoder_read(kdtr_decoder* decoder, const char* name, void* out, uint64_t* bytes) {
  return guarded(decoder, [&] { *bytes = opened(decoder).read(name, out, *bytes); });
}

int kdtr_decoder_fetch(kdtr_decoder* decoder, void* host, const void* data, uint64_t bytes) {
  return guarded(decoder, [&] { kdtr::model::backend_memory().read(host, data, bytes); });
}

int kdtr_decoder_set_tap(kdtr_decoder* decoder, kdtr_decoder_tap tap, void* user) {
  return guarded(decoder, [&] {
    if (tap == nullptr) return opened(decoder).set_tap({});
    opened(decoder).set_tap([tap, user](const std::string& stage, kdtr::CallBuilder& call) {
      tap(user, stage.c_str(), call.call());
    });
  });
}

}  // extern "C"
