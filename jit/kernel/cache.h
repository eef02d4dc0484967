/* The kernel cache on disk: compiled objects by what they were made of.
 *
 * The folder is $QUERN_CACHE/objects, else $XDG_CACHE_HOME/quern/objects, else ~/.cache/quern/objects. A file is named KEY.MAKER:
 * KEY is the SHA-256 of the source, the compiler's flags and the machine, MAKER names the compiler. It holds a header (magic,
 * the object's size and SHA-256) and the object, and is read whole and checked before anybody uses it. Files appear by rename, so
 * that processes which write the same one at once, or die, leave no torn file. No state: any thread. */
#ifndef JIT_KERNEL_CACHE_H
#define JIT_KERNEL_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CACHE_KEY = 65, CACHE_MAKER = 17, CACHE_PATH = 1200 };

/* Writes a text that identifies this processor's features. It is part of the key of kernels compiled for this machine alone. */
void cache_machine(char *out, size_t size);
void cache_key(char key[CACHE_KEY], const char *source, size_t len, const char *const *flags, int nflags,
               const char *machine);
/* Finds the first of n compilers on PATH: sets `path`, and `maker` to a text that differs for every compiler (made of its path, size and
 * time of change). False if there is none; maker is then empty. */
bool cache_maker(const char *const *names, int n, char *path, size_t size, char maker[CACHE_MAKER]);

typedef enum cache_access { CACHE_NONE, CACHE_READS, CACHE_WRITES } cache_access;
/* Sets `folder` to the cache's folder, which is made if it does not exist, and says what may be done there. `folder` is empty where the
 * environment names none. */
cache_access cache_folder(char *folder, size_t size);
/* Sets `path` to the file for a key and a maker, or with an empty maker to a file for this key by any maker. False if there is no such
 * file; with a maker `path` is set nevertheless. */
bool cache_find(const char *folder, const char *key, const char *maker, char path[CACHE_PATH]);

typedef enum cache_state { CACHE_MISSING, CACHE_GOOD, CACHE_DAMAGED } cache_state;
/* Reads and checks a file. If it is good, *object is its object, malloc'ed for the caller. A damaged file is removed. */
cache_state cache_read(const char *path, char **object, size_t *size);
/* Writes an object, then removes those used longest ago until the folder holds at most `limit` bytes. False if it cannot be written.
 * To add up a folder of thousands of files takes longer than to write one: it is added up again only when `*room` bytes were written since
 * then, an eighth of what was free, because other processes write there, too. The caller keeps `*room`, which begins as 0. */
bool cache_write(const char *folder, const char *path, const char *object, size_t size, int64_t limit,
                 _Atomic int64_t *room);

/* Reads a regular file, malloc'ed for the caller. NULL if it cannot be read, is empty or larger than 256 MiB. */
char *cache_read_file(const char *path, size_t *size);
bool cache_write_all(int fd, const void *data, size_t n);

#endif
