/* The binary: everything is in cli.c, which talks to the library through interp.h and the public API. */
#include "interp/interp.h"

int main(int argc, char **argv) { return interp_main(argc, argv); }
