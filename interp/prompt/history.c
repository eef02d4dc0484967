/* The file has an entry a line, with \n for a line's end and \\ for a backslash. Prompts that run at the same time append to it,
 * each entry by one write under a lock, so none loses what another has added. A prompt that finds twice as many entries as
 * are kept writes the newest into a new file and puts that in the place of the old one, under the same lock; whoever waited
 * for the lock meanwhile sees that the path means another file now, and opens it again.
 */
#include "interp/prompt/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lang/value.h"

enum { FILE_MOST = 64 << 20 /* bytes; larger files are not read */ };

static bool push(history *h, char *entry) {
  if (!entry) return false;
  if (h->n == h->cap) {
    int cap = h->cap ? h->cap * 2 : 256;
    char **more = realloc(h->entries, (size_t)cap * sizeof *more);
    if (!more) {
      free(entry);
      return false;
    }
    h->entries = more;
    h->cap = cap;
  }
  h->entries[h->n++] = entry;
  return true;
}

static void drop_oldest(history *h) {
  if (h->n <= 2 * HISTORY_MOST) return;
  int drop = h->n - HISTORY_MOST;
  for (int i = 0; i < drop; i++) free(h->entries[i]);
  memmove(h->entries, h->entries + drop, (size_t)(h->n - drop) * sizeof *h->entries);
  h->n -= drop;
}

/* ---- the file ------------------------------------------------------------------------------------------------------------- */

/* Makes the folders that a path lies in. False if one cannot be made. */
static bool make_folders(char *path) {
  for (char *s = path + 1; *s; s++) {
    if (*s != '/') continue;
    *s = 0;
    bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
    *s = '/';
    if (!made) return false;
  }
  return true;
}

static char *find_path(void) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  bool xdg = state && *state == '/';
  if (!xdg && (!home || *home != '/')) return NULL;
  const char *base = xdg ? state : home, *rest = xdg ? "/quern/history" : "/.local/state/quern/history";
  size_t size = strlen(base) + strlen(rest) + 1;
  char *path = malloc(size);
  if (path) snprintf(path, size, "%s%s", base, rest);
  return path;
}

/* Opens the file and locks it. Returns its descriptor, or -1. */
static int open_locked(history *h) {
  for (int tries = 0; tries < 8; tries++) {
    int fd = open(h->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    struct stat opened = {0}, named;
    if (fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode) && flock(fd, LOCK_EX) == 0 && stat(h->path, &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
      return fd;
    bool regular = S_ISREG(opened.st_mode);
    close(fd);
    if (!regular) return -1;
  }
  return -1;
}

static char *decode(const char *line, size_t len) {
  if (!len || !utf8_valid(line, len) || memchr(line, 0, len)) return NULL;
  char *entry = malloc(len + 1);
  if (!entry) return NULL;
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    char c = line[i];
    if (c == '\\' && i + 1 < len) c = line[++i] == 'n' ? '\n' : line[i];
    if ((unsigned char)c < 32 && c != '\n' && c != '\t') continue;
    entry[n++] = c;
  }
  entry[n] = 0;
  return entry;
}

static void encode(text_buf *t, const char *entry) {
  for (const char *s = entry; *s; s++) {
    if (*s == '\n')
      text_adds(t, "\\n");
    else if (*s == '\\')
      text_adds(t, "\\\\");
    else
      text_add(t, s, 1);
  }
  text_adds(t, "\n");
}

static bool write_all(int fd, const char *text, size_t len) {
  while (len) {
    ssize_t n = write(fd, text, len);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text += n;
    len -= (size_t)n;
  }
  return true;
}

/* Replaces a file that has grown by one with the newest entries. The lock of the file is held. */
static void shorten(history *h) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s.%ld", h->path, (long)getpid()) >= (int)sizeof path) return;
  text_buf t = {0};
  for (int i = h->n > HISTORY_MOST ? h->n - HISTORY_MOST : 0; i < h->n; i++) encode(&t, h->entries[i]);
  int fd = t.failed ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool good = fd >= 0 && write_all(fd, t.text, t.len);
  if (fd >= 0) close(fd);
  if (fd >= 0 && (!good || rename(path, h->path) != 0)) unlink(path);
  text_free(&t);
}

static void read_entries(history *h, int fd) {
  struct stat s;
  if (fstat(fd, &s) != 0 || s.st_size <= 0 || s.st_size > FILE_MOST) return;
  size_t size = (size_t)s.st_size, len = 0;
  char *text = malloc(size);
  while (text && len < size) {
    ssize_t n = pread(fd, text + len, size - len, (off_t)len);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    len += (size_t)n;
  }
  int lines = 0;
  for (size_t at = 0; text && at < len; lines++) {
    char *end = memchr(text + at, '\n', len - at);
    size_t stop = end ? (size_t)(end - text) : len;
    push(h, decode(text + at, stop - at));
    at = stop + 1;
  }
  free(text);
  if (lines > 2 * HISTORY_MOST) shorten(h);
  drop_oldest(h);
}

void history_open(history *h) {
  *h = (history){.path = find_path()};
  if (!h->path) return;
  int fd = make_folders(h->path) ? open_locked(h) : -1;
  if (fd < 0) {
    free(h->path);
    h->path = NULL;
    return;
  }
  read_entries(h, fd);
  close(fd);
}

void history_close(history *h) {
  for (int i = 0; i < h->n; i++) free(h->entries[i]);
  free(h->entries);
  free(h->path);
  *h = (history){0};
}

void history_add(history *h, const char *text, size_t len) {
  while (len && strchr(" \t\n", text[len - 1])) len--;
  if (!len || (h->n && strlen(h->entries[h->n - 1]) == len && memcmp(h->entries[h->n - 1], text, len) == 0)) return;
  char *entry = strndup(text, len);
  if (!push(h, entry)) return;
  drop_oldest(h);
  if (!h->path || len > HISTORY_LONGEST) return;
  text_buf t = {0};
  encode(&t, entry);
  int fd = t.failed ? -1 : open_locked(h);
  if (fd >= 0) {
    /* A line that was cut off, as by a full disk, must not swallow this one. */
    char last = '\n';
    off_t end = lseek(fd, 0, SEEK_END);
    if (end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n') (void)write_all(fd, "\n", 1);
    (void)write_all(fd, t.text, t.len);
    close(fd);
  }
  text_free(&t);
}

int history_search(const history *h, int before, const char *text) {
  for (int i = before - 1; i >= 0; i--)
    if (strstr(h->entries[i], text)) return i;
  return -1;
}
