/* A table of a later version: the judge may read its first two fields only. */
#include "kdtr/plugin.h"

static const kdtr_plugin_table table = {
    KDTR_ABI_VERSION + 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

const kdtr_plugin_table* kdtr_plugin_v1(void) { return &table; }
