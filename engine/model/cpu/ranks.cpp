// The CPU engine's ranks are threads of one program (local_ranks.h); between processes it has none.
#include "../memory.h"
#include "kdtr/error.h"

namespace kdtr::model {

Group new_group() { fail("ranks", "the CPU engine has no communicator between processes"); }

std::unique_ptr<Communicator> join_group(const Group&, int, int) {
  new_group();
  return nullptr;
}

}  // namespace kdtr::model
