// The weights of one rank, in a backend's memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config.h"
#include "memory.h"
#include "tensor_file.h"

namespace kdtr::model {

struct Tensor {
  void* data = nullptr;
  DLDataType dtype{};
  std::vector<std::int64_t> shape;

  std::int64_t numel() const;
  std::size_t bytes() const;
};

// gate, up, down of an MLP, or of all experts stacked; scales when int4.
struct Mlp {
  Tensor gate, up, down;
  Tensor gate_scale, up_scale, down_scale;
  std::int64_t group = 0;  // inputs per scale, 0 = not int4
};

struct Layer {
  Tensor input_norm, post_norm;
  Tensor q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, o;
  std::optional<Mlp> dense;  // or the three below
  Tensor router, bias;
  Mlp experts;
  std::optional<Mlp> shared;
};

struct Weights {
  Tensor embed, norm, lm_head, inv_freq, draft;  // draft [depth * hidden, 2 * hidden]
  std::int64_t depth = 0;                        // draft heads
  std::vector<Layer> layers;
};

// Reads FOLDER/model and, where it exists, FOLDER/draft_heads, .safetensors or .kdtr, by their
// Hugging Face names. A rank gets its share of heads, MLP columns and vocabulary rows.
class Loader {
 public:
  // `only_bf16`: every float weight of an op is wanted as the bf16 that it is stored as.
  Loader(const std::string& folder, const Config& config, Memory& memory, Arena& arena, int rank,
         int world, bool only_bf16);
  Weights load();

 private:
  // Which part of the last two axes: rows `r`, columns `c`; a count of -1 = all.
  struct Part {
    Range r{0, -1}, c{0, -1};
  };
  Tensor stack(const TensorFile& file, const std::vector<std::string>& names,
               const std::vector<std::int64_t>& shape, Part part, bool widen);
  Tensor get(const std::string& name, const std::vector<std::int64_t>& shape, Part part);
  Tensor get(const std::string& name, const std::vector<std::int64_t>& shape);
  Tensor stack(const std::vector<std::string>& names, const std::vector<std::int64_t>& shape,
               Part part);
  Mlp mlp(const std::vector<std::string>& prefixes, std::int64_t hidden_columns);
  Layer layer(std::int64_t index);

  std::string folder_;
  const Config& config_;
  Memory& memory_;
  Arena& arena_;
  int rank_, world_;
  TensorFile file_;
  bool widen_;
};

}  // namespace kdtr::model
