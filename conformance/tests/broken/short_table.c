/* The right version, and a table that ends before its last functions. */
#include "kdtr/plugin.h"

static const kdtr_plugin_table table = {KDTR_ABI_VERSION, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

const kdtr_plugin_table* kdtr_plugin_v1(void) { return &table; }
