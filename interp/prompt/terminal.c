/* Raw mode, keys and size of a terminal.
 *
 * Input arrives as bytes. A byte below 32 is a control key; ESC begins a sequence if the next byte comes within KEY_DELAY, and is
 * a key by itself otherwise: `ESC [ numbers letter` and `ESC O letter` name keys, ESC before anything else is Alt. Between
 * `ESC [200~` and `ESC [201~` lies what was pasted.
 *
 * Signals interrupt the wait through a pipe that their handlers write to, because the thread that gets a signal need not be
 * the one that waits. While the terminal is raw, what ends the process puts the terminal back first.
 */
#include "interp/prompt/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interp/prompt/cli.h"

enum { KEY_DELAY = 40, PASTE_DELAY = 3000 /* milliseconds */ };
static const char PASTE_ON[] = "\033[?2004h", PASTE_OFF[] = "\033[?2004l";

/* ---- signals ----------------------------------------------------------------------------------------------------------- */

/* Signal handlers have no argument: there is one terminal that a process edits on. */
static int wake_pipe[2] = {-1, -1};
static volatile sig_atomic_t resized, resumed;
static terminal *volatile raw;

static const int endings[] = {SIGTERM, SIGHUP, SIGQUIT};
enum { ENDINGS = sizeof endings / sizeof *endings };
static struct sigaction before_endings[ENDINGS], before_resize, before_resume;

void terminal_wake(void) {
  int kept = errno;
  char c = 0;
  if (wake_pipe[1] >= 0 && write(wake_pipe[1], &c, 1) < 0) { /* the pipe is full, so the wait ends anyway */
  }
  errno = kept;
}

static void on_resize(int signal) {
  (void)signal;
  resized = 1;
  terminal_wake();
}

static void on_resume(int signal) {
  (void)signal;
  resumed = 1;
  terminal_wake();
}

static void on_ending(int number) {
  terminal *t = raw;
  if (t) {
    tcsetattr(t->in, TCSANOW, &t->cooked);
    if (write(t->out, PASTE_OFF, sizeof PASTE_OFF - 1) < 0) {}
  }
  signal(number, SIG_DFL);
  kill(getpid(), number);
}

static void handle(int number, void (*handler)(int), struct sigaction *before) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, before);
  if (handler == on_ending && before->sa_handler != SIG_DFL) sigaction(number, before, NULL);
}

static bool open_pipe(void) {
  if (wake_pipe[0] >= 0) return true;
  if (pipe(wake_pipe) != 0) return false;
  for (int i = 0; i < 2; i++) {
    fcntl(wake_pipe[i], F_SETFD, FD_CLOEXEC);
    fcntl(wake_pipe[i], F_SETFL, O_NONBLOCK);
  }
  return true;
}

static void drain_pipe(void) {
  char drop[64];
  while (read(wake_pipe[0], drop, sizeof drop) > 0) {}
}

bool terminal_line_begin(void) {
  if (!open_pipe()) return false;
  drain_pipe();
  return true;
}

bool terminal_line_wait(int in) {
  struct pollfd p[2] = {{.fd = in, .events = POLLIN}, {.fd = wake_pipe[0], .events = POLLIN}};
  while (poll(p, 2, -1) < 0 && errno == EINTR) {}
  return !p[1].revents;
}

/* ---- modes -------------------------------------------------------------------------------------------------------------- */

void terminal_init(terminal *t, int in, int out) { *t = (terminal){.in = in, .out = out, .rows = 24, .columns = 80}; }

void terminal_free(terminal *t) {
  text_free(&t->text);
  text_free(&t->paste);
}

void terminal_measure(terminal *t) {
  struct winsize size;
  if (ioctl(t->out, TIOCGWINSZ, &size) != 0) return;
  t->columns = size.ws_col ? size.ws_col : 80;
  t->rows = size.ws_row ? size.ws_row : 24;
}

/* Bytes of a line that fill `width` columns, up to a blank if there is one; all of them if they fit. */
static size_t fitting(const char *line, size_t len, int width) {
  size_t at = 0, blank = 0;
  for (int used = 0; at < len; at++) {
    if (((unsigned char)line[at] & 0xc0) == 0x80) continue;
    if (line[at] == ' ') blank = at;
    if (used++ == width) return blank ? blank : at;
  }
  return len;
}

bool text_rows_next(text_rows *r, int columns) {
  enum { NARROW = 20, CODE = 4 /* columns */ };
  if (r->at >= r->len) return false;
  const char *line = r->text + r->at, *stop = memchr(line, '\n', r->len - r->at);
  size_t n = stop ? (size_t)(stop - line) : r->len - r->at, part = n;
  if (!r->inside) {
    r->indent = 0;
    while (r->indent < n && line[r->indent] == ' ') r->indent++;
  }
  r->lead = r->inside ? (int)r->indent + 2 : 0;
  if (columns > NARROW && r->indent < CODE) part = fitting(line, n, columns - r->lead);
  r->row = line;
  r->n = part;
  r->inside = part < n;
  while (part < n && line[part] == ' ') part++;
  r->at += r->inside ? part : n + (stop != NULL);
  int64_t wide = utf8_columns(r->row, r->n) + r->lead;
  r->high = columns > 0 && wide > columns ? (int)((wide - 1) / columns) + 1 : 1;
  return true;
}

void terminal_write_text(FILE *to, const char *text, size_t len) {
  int width = cli_columns(fileno(to));
  for (text_rows r = {.text = text, .len = len}; text_rows_next(&r, width);) {
    bool ends = r.inside || text[r.at - 1] == '\n';
    fprintf(to, "%*s%.*s%s", r.lead, "", (int)r.n, r.row, ends ? "\n" : "");
  }
}

static bool set_raw(const terminal *t) {
  struct termios mode = t->cooked;
  mode.c_iflag &= ~(tcflag_t)(BRKINT | ICRNL | INLCR | IGNCR | INPCK | ISTRIP | IXON);
  mode.c_lflag &= ~(tcflag_t)(ECHO | ECHONL | ICANON | IEXTEN | ISIG);
  mode.c_cflag |= CS8;
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  return tcsetattr(t->in, TCSADRAIN, &mode) == 0;
}

bool terminal_begin(terminal *t) {
  if (!open_pipe() || tcgetattr(t->in, &t->cooked) != 0 || !set_raw(t)) return false;
  raw = t;
  handle(SIGWINCH, on_resize, &before_resize);
  handle(SIGCONT, on_resume, &before_resume);
  for (int i = 0; i < ENDINGS; i++) handle(endings[i], on_ending, &before_endings[i]);
  terminal_measure(t);
  resized = resumed = 0;
  text_adds(&t->text, PASTE_ON);
  return true;
}

void terminal_end(terminal *t) {
  if (!raw) return;
  text_adds(&t->text, PASTE_OFF);
  terminal_flush(t);
  tcsetattr(t->in, TCSADRAIN, &t->cooked);
  raw = NULL;
  sigaction(SIGWINCH, &before_resize, NULL);
  sigaction(SIGCONT, &before_resume, NULL);
  for (int i = 0; i < ENDINGS; i++) sigaction(endings[i], &before_endings[i], NULL);
}

void terminal_suspend(terminal *t) {
  terminal_end(t);
  kill(0, SIGTSTP);
  if (!terminal_begin(t)) terminal_wake();
}

void terminal_flush(terminal *t) {
  size_t at = 0;
  while (at < t->text.len) {
    ssize_t n = write(t->out, t->text.text + at, t->text.len - at);
    if (n > 0) {
      at += (size_t)n;
    } else if (n < 0 && errno == EAGAIN) {
      struct pollfd p = {.fd = t->out, .events = POLLOUT};
      poll(&p, 1, 1000);
    } else if (n < 0 && errno != EINTR) {
      break;
    }
  }
  t->text.len = 0;
  t->text.failed = false;
}

/* ---- bytes --------------------------------------------------------------------------------------------------------------- */

enum { BYTE_LATE = -1, BYTE_CLOSED = -2, BYTE_SIGNAL = -3 };

/* The next byte of the input. If none comes within the time (-1: no limit) the result says why. */
static int next_byte(terminal *t, int milliseconds) {
  bool waited = false;
  while (t->at == t->n) {
    struct pollfd p[2] = {{.fd = t->in, .events = POLLIN}, {.fd = wake_pipe[0], .events = POLLIN}};
    int ready = poll(p, 2, 0);
    if (ready == 0) {
      waited = true;
      ready = poll(p, 2, milliseconds);
    }
    if (ready == 0) return BYTE_LATE;
    if (ready < 0 && errno == EINTR) continue;
    if (p[1].revents) {
      drain_pipe();
      return BYTE_SIGNAL;
    }
    ssize_t n = ready < 0 ? -1 : read(t->in, t->bytes, sizeof t->bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return BYTE_CLOSED;
    t->at = 0;
    t->n = (size_t)n;
    t->burst = waited;
  }
  return t->bytes[t->at++];
}

bool terminal_waits(terminal *t) {
  struct pollfd p = {.fd = t->in, .events = POLLIN};
  return t->at < t->n || poll(&p, 1, 0) > 0;
}

bool terminal_pasting(terminal *t) {
  if (!t->burst) return false;
  if (t->at == t->n) {
    if (!terminal_waits(t) || next_byte(t, 0) < 0) return false;
    t->at--;
    t->burst = true;
  }
  unsigned char c = t->bytes[t->at];
  return (c >= 32 && c != KEY_BACKSPACE) || c == '\n' || c == '\r' || c == '\t';
}

/* ---- keys ---------------------------------------------------------------------------------------------------------------- */

static int bracketed_paste(terminal *t) {
  static const char end[] = "\033[201~";
  enum { END = sizeof end - 1 };
  text_buf *p = &t->paste;
  p->len = 0;
  p->failed = false;
  for (;;) {
    int c = next_byte(t, PASTE_DELAY);
    if (c == BYTE_SIGNAL) continue;
    if (c < 0) break;
    char byte = (char)c;
    if (p->len < PASTE_MOST) {
      text_add(p, &byte, 1);
    } else { /* the text is too long, and only its end is looked for */
      memmove(p->text + p->len - END, p->text + p->len - END + 1, END - 1);
      p->text[p->len - 1] = byte;
    }
    if (c == '~' && p->len >= END && !p->failed && memcmp(p->text + p->len - END, end, END) == 0) {
      p->len -= END;
      break;
    }
  }
  return KEY_PASTE;
}

/* The key that a sequence means, from its numbers and its last byte. */
static int named_key(terminal *t, int last, int number, int modifiers) {
  static const struct {
    int last, number, key; /* sequences that end in '~' differ by their number */
  } keys[] = {{'A', 0, KEY_UP},       {'B', 0, KEY_DOWN}, {'C', 0, KEY_RIGHT},  {'D', 0, KEY_LEFT},
              {'H', 0, KEY_HOME},     {'F', 0, KEY_END},  {'~', 1, KEY_HOME},   {'~', 7, KEY_HOME},
              {'~', 4, KEY_END},      {'~', 8, KEY_END},  {'~', 3, KEY_DELETE}, {'~', 5, KEY_PAGE_UP},
              {'~', 6, KEY_PAGE_DOWN}};
  if (last == 'M') return KEY_ENTER; /* Enter of the keypad */
  if (last == 'Z') return KEY_BACKTAB;
  if (last == '~' && number == 200) return bracketed_paste(t);
  int bits = modifiers > 1 ? modifiers - 1 : 0;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (keys[i].last == last && (last != '~' || keys[i].number == number))
      return keys[i].key | (bits & 1 ? KEY_SHIFT : 0) | (bits & 2 ? KEY_ALT : 0) | (bits & 4 ? KEY_CONTROL : 0);
  return KEY_NONE;
}

/* Reads the rest of a sequence that begins with ESC [ (csi) or ESC O, and returns its key. */
static int sequence_key(terminal *t, bool csi) {
  int numbers[2] = {0, 0}, count = 0;
  for (int length = 0; length < 32; length++) {
    int c = next_byte(t, KEY_DELAY);
    if (c < 0) return KEY_NONE;
    if (c >= '0' && c <= '9') {
      if (count < 2 && numbers[count] < 1000) numbers[count] = numbers[count] * 10 + (c - '0');
    } else if (c == ';') {
      count++;
    } else if (c >= 0x40 && c < 0x7f) {
      return named_key(t, c, numbers[0], numbers[1]);
    } else if (c < 0x20 || c >= 0x7f || !csi) {
      return KEY_NONE;
    }
  }
  return KEY_NONE;
}

/* Reads the rest of a code point whose first byte is `first`. Bytes that are not UTF-8 are dropped. */
static int code_point(terminal *t, int first) {
  int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  char bytes[5] = {(char)first};
  if (first < 0xc2 || first > 0xf4) return KEY_NONE;
  for (int i = 1; i <= more; i++) {
    int c = next_byte(t, KEY_DELAY);
    if (c < 0) return KEY_NONE;
    if ((c & 0xc0) != 0x80) {
      t->at--;
      return KEY_NONE;
    }
    bytes[i] = (char)c;
  }
  uint32_t code;
  if (!utf8_valid(bytes, (size_t)more + 1)) return KEY_NONE;
  utf8_decode(bytes, &code);
  return code < 0xa0 ? KEY_NONE : (int)code; /* control characters of their own */
}

int terminal_key(terminal *t) {
  int c = next_byte(t, -1);
  if (c == BYTE_SIGNAL) {
    if (cli_interrupted()) return KEY_INTERRUPT;
    if (resumed) {
      resumed = 0;
      text_adds(&t->text, PASTE_ON);
      return set_raw(t) ? KEY_RESUMED : KEY_CLOSED; /* the terminal may be in another mode than before */
    }
    if (!resized) return KEY_NONE;
    resized = 0;
    return KEY_RESIZE;
  }
  if (c < 0) return KEY_CLOSED;
  if (c >= 0x80) return code_point(t, c);
  if (c != KEY_ESCAPE) return c;
  c = next_byte(t, KEY_DELAY);
  if (c < 0) return KEY_ESCAPE;
  int alt = 0;
  if (c == KEY_ESCAPE) {
    int next = next_byte(t, KEY_DELAY);
    if (next != '[' && next != 'O') {
      if (next >= 0) t->at--;
      return KEY_ESCAPE;
    }
    alt = KEY_ALT;
    c = next;
  }
  if (c == '[' || c == 'O') {
    int key = sequence_key(t, c == '[');
    return key > KEY_NONE && key < KEY_PASTE ? key | alt : key;
  }
  if (c >= 0x80) c = code_point(t, c);
  return c == KEY_NONE ? KEY_NONE : c | KEY_ALT;
}
