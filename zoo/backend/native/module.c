/* The one symbol that setuptools wants in an extension; nothing imports it, the library is reached by ctypes. */
#if defined(_WIN32)
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
void *PyInit__native(void) { return (void *)0; }
