/* A library that is no plug-in. */
int kdtr_plugin_v2(void) { return 0; }
