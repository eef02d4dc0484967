/* The kernel cache on disk (cache.h). */
#define _GNU_SOURCE
#include "jit/kernel/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <sys/auxv.h>
#endif

#include "jit/kernel/sha256.h"

typedef struct cache_header {
  char magic[8];
  uint64_t size;
  uint8_t sha[32];
} cache_header;
static const char cache_magic[8] = {'q', 'u', 'e', 'r', 'n', '0', '1', '\n'};
/* After this time a temporary file is taken to be left behind by a process that died, and is removed. */
enum { STALE_SECONDS = 3600 };
#define TEMPORARY ".new-"

/* ---- files ------------------------------------------------------------------------------------------------------- */

bool cache_write_all(int fd, const void *data, size_t n) {
  const char *p = data;
  while (n) {
    ssize_t k = write(fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    n -= (size_t)k;
  }
  return true;
}

char *cache_read_file(const char *path, size_t *size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NULL;
  struct stat st;
  char *data = NULL;
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= 256 << 20 &&
      (data = malloc((size_t)st.st_size))) {
    size_t n = 0;
    ssize_t k = 1;
    while (n < (size_t)st.st_size && k != 0) {
      k = read(fd, data + n, (size_t)st.st_size - n);
      if (k < 0 && errno != EINTR) break;
      if (k > 0) n += (size_t)k;
    }
    *size = n;
    if (k < 0) {
      free(data);
      data = NULL;
    }
  }
  close(fd);
  return data;
}

static void sha_of(const void *data, size_t n, uint8_t out[32]) {
  sha256 s;
  sha256_init(&s);
  sha256_add(&s, data, n);
  sha256_end(&s, out);
}

static void hex(const uint8_t *sha, int n, char *out) {
  for (int i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", sha[i]);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

void cache_machine(char *out, size_t size) {
#if defined(__x86_64__)
  unsigned r[4][4] = {{0}}, low = 0, high = 0;
  __get_cpuid(1, &r[0][0], &r[0][1], &r[0][2], &r[0][3]);
  __get_cpuid_count(7, 0, &r[1][0], &r[1][1], &r[1][2], &r[1][3]);
  __get_cpuid_count(7, 1, &r[2][0], &r[2][1], &r[2][2], &r[2][3]);
  __get_cpuid(0x80000001, &r[3][0], &r[3][1], &r[3][2], &r[3][3]);
  if (r[0][2] & bit_OSXSAVE) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  /* the masks leave out the stepping and the number of the core that runs this */
  snprintf(out, size, "x86 %x %x %x %x %x %x %x %x %x %x", r[0][0] & 0x0fff0ff0, r[0][2], r[0][3], r[1][1], r[1][2],
           r[1][3], r[2][0], r[3][2], r[3][3], low);
#else
  const char *platform = (const char *)getauxval(AT_PLATFORM);
  snprintf(out, size, "%s %lx %lx", platform ? platform : "", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#endif
}

void cache_key(char key[CACHE_KEY], const char *source, size_t len, const char *const *flags, int nflags,
               const char *machine) {
  sha256 s;
  uint8_t sha[32];
  sha256_init(&s);
  sha256_add(&s, source, len);
  for (int i = 0; i < nflags; i++) sha256_add(&s, flags[i], strlen(flags[i]) + 1);
  sha256_add(&s, machine, strlen(machine));
  sha256_end(&s, sha);
  hex(sha, 32, key);
}

static bool is_program(const char *path, struct stat *st) {
  return stat(path, st) == 0 && S_ISREG(st->st_mode) && access(path, X_OK) == 0;
}

bool cache_maker(const char *const *names, int n, char *path, size_t size, char maker[CACHE_MAKER]) {
  const char *search = getenv("PATH");
  maker[0] = 0;
  for (int i = 0; i < n && search; i++)
    for (const char *folder = search; *folder;) {
      size_t len = strcspn(folder, ":");
      struct stat st;
      int k = len ? snprintf(path, size, "%.*s/%s", (int)len, folder, names[i]) : -1;
      if (k > 0 && (size_t)k < size && is_program(path, &st)) {
        char text[128];
        uint8_t sha[32];
        sha256 s;
        snprintf(text, sizeof text, "%lld %lld %ld", (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                 st.st_mtim.tv_nsec);
        sha256_init(&s);
        sha256_add(&s, path, strlen(path) + 1);
        sha256_add(&s, text, strlen(text));
        sha256_end(&s, sha);
        hex(sha, CACHE_MAKER / 2, maker);
        return true;
      }
      folder += len + (folder[len] == ':');
    }
  return false;
}

static bool is_hex(const char *s, size_t n) { return strspn(s, "0123456789abcdef") == n; }

/* Is this the name of a cached object? Other files in the folder are left alone. */
static bool is_ours(const char *name) {
  return strlen(name) == CACHE_KEY + CACHE_MAKER - 1 && is_hex(name, CACHE_KEY - 1) && name[CACHE_KEY - 1] == '.' &&
         is_hex(name + CACHE_KEY, CACHE_MAKER - 1);
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static bool make_folders(char *path) {
  struct stat st;
  for (char *p = path + 1;; p++) {
    if (*p != '/' && *p != 0) continue;
    char c = *p;
    *p = 0;
    bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
    *p = c;
    if (!ok) return false;
    if (!c) return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
  }
}

cache_access cache_folder(char *folder, size_t size) {
  const char *quern = getenv("QUERN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = -1;
  folder[0] = 0;
  if (quern && *quern)
    n = snprintf(folder, size, "%s/objects", quern);
  else if (xdg && *xdg)
    n = snprintf(folder, size, "%s/quern/objects", xdg);
  else if (home && *home)
    n = snprintf(folder, size, "%s/.cache/quern/objects", home);
  if (n < 0) return CACHE_NONE;
  if ((size_t)n >= size || !make_folders(folder) || access(folder, R_OK | X_OK) != 0) return CACHE_NONE;
  return access(folder, W_OK) == 0 ? CACHE_WRITES : CACHE_READS;
}

bool cache_find(const char *folder, const char *key, const char *maker, char path[CACHE_PATH]) {
  if (*maker) {
    snprintf(path, CACHE_PATH, "%s/%s.%s", folder, key, maker);
    return access(path, F_OK) == 0;
  }
  DIR *d = opendir(folder);
  bool found = false;
  for (struct dirent *e; d && !found && (e = readdir(d));) {
    found = is_ours(e->d_name) && memcmp(e->d_name, key, CACHE_KEY - 1) == 0;
    if (found) snprintf(path, CACHE_PATH, "%s/%s", folder, e->d_name);
  }
  if (d) closedir(d);
  return found;
}

/* Removes stale temporary files, and the objects used longest ago until the rest takes at most `limit` bytes; gives how many of these are
 * free then. */
static int64_t trim(const char *folder, int64_t limit) {
  for (int round = 0; round < 64; round++) {
    DIR *d = opendir(folder);
    if (!d) break;
    int64_t total = 0;
    struct timespec oldest = {0};
    char victim[256] = "";
    for (struct dirent *e; (e = readdir(d));) {
      struct stat st;
      bool temporary = strncmp(e->d_name, TEMPORARY, strlen(TEMPORARY)) == 0;
      if (!temporary && !is_ours(e->d_name)) continue;
      if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) continue;
      if (temporary) {
        if (time(NULL) - st.st_mtime > STALE_SECONDS) unlinkat(dirfd(d), e->d_name, 0);
        continue;
      }
      total += st.st_size;
      if (victim[0] && (st.st_mtim.tv_sec > oldest.tv_sec ||
                        (st.st_mtim.tv_sec == oldest.tv_sec && st.st_mtim.tv_nsec >= oldest.tv_nsec)))
        continue;
      oldest = st.st_mtim;
      snprintf(victim, sizeof victim, "%s", e->d_name);
    }
    if (total > limit && victim[0]) unlinkat(dirfd(d), victim, 0);
    closedir(d);
    if (total <= limit) return limit - total;
  }
  return 0;
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

cache_state cache_read(const char *path, char **object, size_t *size) {
  size_t n = 0;
  cache_header h;
  uint8_t sha[32];
  struct stat st;
  *object = NULL;
  char *data = cache_read_file(path, &n);
  if (!data && (lstat(path, &st) != 0 || (S_ISREG(st.st_mode) && st.st_size > 0))) return CACHE_MISSING;
  if (data && n > sizeof h) {
    memcpy(&h, data, sizeof h);
    sha_of(data + sizeof h, n - sizeof h, sha);
    if (memcmp(h.magic, cache_magic, sizeof h.magic) == 0 && h.size == n - sizeof h && memcmp(h.sha, sha, 32) == 0) {
      memmove(data, data + sizeof h, (size_t)h.size);
      *object = data;
      *size = (size_t)h.size;
      utimensat(AT_FDCWD, path, NULL, 0); /* the time of last use, by which trim chooses */
      return CACHE_GOOD;
    }
  }
  free(data);
  unlink(path);
  return CACHE_DAMAGED;
}

bool cache_write(const char *folder, const char *path, const char *object, size_t size, int64_t limit,
                 _Atomic int64_t *room) {
  cache_header h = {.size = size};
  memcpy(h.magic, cache_magic, sizeof h.magic);
  sha_of(object, size, h.sha);
  char temporary[CACHE_PATH];
  snprintf(temporary, sizeof temporary, "%s/" TEMPORARY "XXXXXX", folder);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) return false;
  bool ok = cache_write_all(fd, &h, sizeof h) && cache_write_all(fd, object, size);
  ok = close(fd) == 0 && ok;
  ok = ok && rename(temporary, path) == 0;
  if (!ok) unlink(temporary);
  if (atomic_fetch_sub(room, (int64_t)size) < (int64_t)size) atomic_store(room, trim(folder, limit) / 8);
  return ok;
}
