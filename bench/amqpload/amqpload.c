/*
 * amqpload - an AMQP 0-9-1 load generator and integrity checker.
 *
 * Plain sockets, no client library.  It is meant to cost far less CPU than
 * any broker it measures: publishes are pre-encoded in a ring of slots and
 * leave in large writes (messages that differ in length, --vary-size,
 * --vary-props, --keys, are encoded one by one); deliveries are parsed in
 * place from large reads.
 *
 * Every body starts with
 *      u64 sequence number (per producer, from 0)     little endian
 *      u32 producer id
 *      u32 run id
 *      u64 send time, CLOCK_MONOTONIC ns              (bodies of 24 B and up)
 * and is filled up with bytes the consumer can predict, so that it can check
 * for loss, duplicates, reordering per producer, and corruption.  Varied
 * sizes, properties and routing keys follow from the same three numbers, so
 * the consumer checks them too.
 *
 * Build:  make -C bench/amqpload
 * Usage:  amqpload --help
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define EX_OK_ 0
#define EX_USAGE_ 1     /* bad arguments, cannot connect */
#define EX_CLOSED_ 2    /* channel/connection closed, protocol error */
#define EX_INTEGRITY_ 3 /* lost, duplicated, reordered or corrupt messages */
#define EX_STALLED_ 4   /* nothing arrived for --idle-timeout seconds */

#define MAX_ARGS 32
#define NS 1000000000ull

/* ------------------------------------------------------------------ options */

typedef struct {
    const char *mode, *host, *port, *vhost, *user, *pass;
    const char *queue, *exchange, *extype, *label;
    long nqueues;
    uint64_t n;
    uint32_t size;
    int durable, persistent, passive, no_declare, purge, delete_before, delete_after;
    int autodelete, exclusive;
    int producers, consumers;
    uint32_t window;
    uint32_t prefetch, ackevery;
    int no_ack, no_final_ack, partial, mandatory;
    double rate;
    uint64_t progress;
    uint32_t chunk;
    uint32_t run_id;
    int priority; /* highest priority used; -1: none */
    int heartbeat;
    uint32_t frame_max;
    double idle_timeout, max_time;
    int server_pid;
    double rss_interval;
    int pipeline;
    int rcvbuf;
    int vary_size, vary_props, ack_each;
    long nkeys, nbindings;
    uint32_t large_size;  /* of one body in large_every; 0: none */
    uint32_t large_every;
    char *qargs[MAX_ARGS];
    int nqargs;
    char *cargs[MAX_ARGS];
    int ncargs;
} options;

static options O = {
    .host = "127.0.0.1", .port = "5672", .vhost = "/", .user = "guest", .pass = "guest",
    .queue = "amqpload", .exchange = "", .extype = "", .label = "",
    .nqueues = 1, .n = 100000, .size = 256,
    .producers = 1, .consumers = 1, .window = 0,
    .prefetch = 200, .ackevery = 0, .chunk = 65536, .run_id = 0x4b545350,
    .priority = -1, .heartbeat = 60, .frame_max = 131072, .idle_timeout = 30,
    .rss_interval = 0.2, .pipeline = 1, .large_every = 100,
};

/* ------------------------------------------------------------------ helpers */

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NS + (uint64_t)ts.tv_nsec;
}

static pthread_mutex_t out_mu = PTHREAD_MUTEX_INITIALIZER;

static void json_str(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\') fprintf(f, "\\%c", ch);
        else if (ch < 0x20 || ch >= 0x7f) fprintf(f, "\\u%04x", ch);
        else fputc(ch, f);
    }
    fputc('"', f);
}

__attribute__((noreturn, format(printf, 2, 3)))
static void die(int code, const char *fmt, ...)
{
    char msg[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&out_mu);
    fprintf(stderr, "amqpload: error: %s\n", msg);
    printf("{\"error\":");
    json_str(stdout, msg);
    printf(",\"mode\":");
    json_str(stdout, O.mode ? O.mode : "");
    printf(",\"label\":");
    json_str(stdout, O.label);
    printf(",\"exit\":%d}\n", code);
    fflush(stdout);
    fflush(stderr);
    _exit(code);
}

static void *xmalloc(size_t n)
{
    void *p = calloc(1, n ? n : 1);
    if (!p) die(EX_USAGE_, "out of memory (%zu bytes)", n);
    return p;
}

static uint16_t g16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static uint32_t g32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static uint64_t g64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

/* growing output buffer */
typedef struct {
    uint8_t *p;
    size_t len, cap, off; /* off: start of what is not yet written */
} obuf;

static uint8_t *ob_room(obuf *b, size_t n)
{
    if (b->len + n > b->cap) {
        size_t c = b->cap ? b->cap * 2 : 4096;
        while (c < b->len + n) c *= 2;
        b->p = realloc(b->p, c);
        if (!b->p) die(EX_USAGE_, "out of memory");
        b->cap = c;
    }
    return b->p + b->len;
}
static void p8(obuf *b, unsigned v) { *ob_room(b, 1) = (uint8_t)v; b->len += 1; }
static void p16(obuf *b, unsigned v) { p8(b, v >> 8); p8(b, v & 255); }
static void p32(obuf *b, uint32_t v) { p16(b, v >> 16); p16(b, v & 65535); }
static void p64(obuf *b, uint64_t v) { p32(b, (uint32_t)(v >> 32)); p32(b, (uint32_t)v); }
static void praw(obuf *b, const void *s, size_t n)
{
    memcpy(ob_room(b, n), s, n);
    b->len += n;
}
static void pshort(obuf *b, const char *s)
{
    size_t n = strlen(s);
    if (n > 255) die(EX_USAGE_, "name longer than 255 bytes");
    p8(b, (unsigned)n);
    praw(b, s, n);
}
static void plong(obuf *b, const char *s, size_t n) { p32(b, (uint32_t)n); praw(b, s, n); }
static size_t frame_begin(obuf *b, int type, int chan)
{
    p8(b, (unsigned)type);
    p16(b, (unsigned)chan);
    p32(b, 0);
    return b->len;
}
static void fix32(obuf *b, size_t at, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(b->p + at, &v, 4);
}
static void frame_end(obuf *b, size_t start)
{
    fix32(b, start - 4, (uint32_t)(b->len - start));
    p8(b, 0xCE);
}
static size_t method_begin(obuf *b, int chan, int cls, int mth)
{
    size_t s = frame_begin(b, 1, chan);
    p16(b, (unsigned)cls);
    p16(b, (unsigned)mth);
    return s;
}
static size_t table_begin(obuf *b) { p32(b, 0); return b->len; }
static void table_end(obuf *b, size_t s) { fix32(b, s - 4, (uint32_t)(b->len - s)); }

/* "key=value" or "key=t:value"; t: s string, i int32, l int64, b bool, u u8, d double */
static void put_args(obuf *b, char **a, int n)
{
    size_t t = table_begin(b);
    for (int i = 0; i < n; i++) {
        const char *eq = strchr(a[i], '=');
        if (!eq) die(EX_USAGE_, "argument \"%s\" is not key=value", a[i]);
        char key[256];
        size_t kl = (size_t)(eq - a[i]);
        if (kl > 255) die(EX_USAGE_, "argument key too long");
        memcpy(key, a[i], kl);
        key[kl] = 0;
        const char *v = eq + 1;
        char type = 0;
        if (v[0] && v[1] == ':' && strchr("silbud", v[0])) {
            type = v[0];
            v += 2;
        }
        if (!type) {
            char *end;
            errno = 0;
            long long x = strtoll(v, &end, 10);
            if (*v && !*end && !errno) type = (x > INT32_MAX || x < INT32_MIN) ? 'l' : 'i';
            else if (!strcmp(v, "true") || !strcmp(v, "false")) type = 'b';
            else type = 's';
        }
        pshort(b, key);
        switch (type) {
        case 's': p8(b, 'S'); plong(b, v, strlen(v)); break;
        case 'i': p8(b, 'I'); p32(b, (uint32_t)strtol(v, NULL, 10)); break;
        case 'l': p8(b, 'l'); p64(b, (uint64_t)strtoll(v, NULL, 10)); break;
        case 'u': p8(b, 'B'); p8(b, (unsigned)strtoul(v, NULL, 10)); break;
        case 'b': p8(b, 't'); p8(b, !strcmp(v, "true") || !strcmp(v, "1")); break;
        case 'd': {
            double d = strtod(v, NULL);
            uint64_t x;
            memcpy(&x, &d, 8);
            p8(b, 'd');
            p64(b, x);
            break;
        }
        }
    }
    table_end(b, t);
}

/* ------------------------------------------------------------- /proc sampling */

typedef struct { int pid, ppid; uint64_t cpu_ns; uint64_t rss; } procinfo;

static int read_stat(int pid, procinfo *pi)
{
    char path[64], buf[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t k = read(fd, buf, sizeof buf - 1);
    close(fd);
    if (k <= 0) return -1;
    buf[k] = 0;
    char *p = strrchr(buf, ')');
    if (!p) return -1;
    unsigned long long ut, st;
    long long cut, cst, rss;
    int ppid;
    /* after ")": state ppid pgrp session tty tpgid flags minflt cminflt majflt
       cmajflt utime stime cutime cstime prio nice threads itreal start vsize rss */
    if (sscanf(p + 2, "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld "
                      "%*d %*d %*d %*d %*u %*u %lld", &ppid, &ut, &st, &cut, &cst, &rss) != 6)
        return -1;
    pi->pid = pid;
    pi->ppid = ppid;
    uint64_t tick_ns = NS / (uint64_t)sysconf(_SC_CLK_TCK);
    pi->cpu_ns = (ut + st) * tick_ns;
    /* the same to the nanosecond: a tick is 10 ms, which is a lot of a short run */
    clockid_t clock;
    struct timespec ts;
    if (clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &ts) == 0)
        pi->cpu_ns = (uint64_t)ts.tv_sec * NS + (uint64_t)ts.tv_nsec;
    pi->cpu_ns += ((uint64_t)cut + (uint64_t)cst) * tick_ns; /* of children that have ended */
    pi->rss = (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE);
    return 0;
}

/* CPU seconds (children that have ended included) and RSS of a process tree */
static int tree_usage(int root, double *cpu, uint64_t *rss)
{
    static __thread procinfo *v;
    static __thread size_t cap;
    size_t n = 0;
    DIR *d = opendir("/proc");
    if (!d) return -1;
    struct dirent *e;
    while ((e = readdir(d))) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 256;
            v = realloc(v, cap * sizeof *v);
            if (!v) die(EX_USAGE_, "out of memory");
        }
        if (read_stat(atoi(e->d_name), &v[n]) == 0) n++;
    }
    closedir(d);
    uint64_t cpu_ns = 0, r = 0;
    int found = 0;
    for (size_t i = 0; i < n; i++) {
        int p = v[i].pid, hops = 0;
        while (p > 0 && p != root && hops++ < 64) {
            int pp = 0;
            for (size_t j = 0; j < n; j++)
                if (v[j].pid == p) { pp = v[j].ppid; break; }
            p = pp;
        }
        if (p == root) {
            found = 1;
            cpu_ns += v[i].cpu_ns;
            r += v[i].rss;
        }
    }
    *cpu = (double)cpu_ns / 1e9;
    *rss = r;
    return found ? 0 : -1;
}

/* CPU seconds of the whole machine, and what the hypervisor took */
static void machine_cpu(double *busy, double *steal)
{
    unsigned long long u = 0, n = 0, s = 0, id, io, irq = 0, sirq = 0, st = 0;
    FILE *f = fopen("/proc/stat", "r");
    *busy = *steal = 0;
    if (!f) return;
    if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &u, &n, &s, &id, &io, &irq, &sirq, &st) == 8) {
        *busy = (double)(u + n + s + irq + sirq) / (double)sysconf(_SC_CLK_TCK);
        *steal = (double)st / (double)sysconf(_SC_CLK_TCK);
    }
    fclose(f);
}

static double self_cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* ---------------------------------------------------------------- histogram */

#define SUB 128
#define HB (SUB * 40)
typedef struct { uint64_t b[HB]; uint64_t n, max, sum; } hist;

static unsigned hidx(uint64_t us)
{
    if (us < SUB) return (unsigned)us;
    unsigned e = 63 - (unsigned)__builtin_clzll(us) - 7; /* us>>e in [128,256) */
    unsigned i = SUB + e * SUB + (unsigned)((us >> e) - SUB);
    return i < HB ? i : HB - 1;
}
static uint64_t hval(unsigned i)
{
    if (i < SUB) return i;
    unsigned e = (i - SUB) / SUB, m = (i - SUB) % SUB;
    return ((uint64_t)(SUB + m) << e) + ((1ull << e) >> 1);
}
static void hadd(hist *h, uint64_t us)
{
    h->b[hidx(us)]++;
    h->n++;
    h->sum += us;
    if (us > h->max) h->max = us;
}
static void hmerge(hist *a, const hist *b)
{
    for (int i = 0; i < HB; i++) a->b[i] += b->b[i];
    a->n += b->n;
    a->sum += b->sum;
    if (b->max > a->max) a->max = b->max;
}
static uint64_t hpct(const hist *h, double q)
{
    uint64_t want = (uint64_t)(q * (double)h->n + 0.999999), s = 0;
    if (!want) want = 1;
    for (unsigned i = 0; i < HB; i++)
        if ((s += h->b[i]) >= want) {
            uint64_t v = hval(i);
            return v > h->max ? h->max : v;
        }
    return h->max;
}
static void hprint(FILE *f, const char *name, const hist *h)
{
    if (!h->n) return;
    fprintf(f, ",\"%s\":{\"n\":%" PRIu64 ",\"mean\":%.1f,\"p50\":%" PRIu64 ",\"p90\":%" PRIu64
               ",\"p99\":%" PRIu64 ",\"p99_9\":%" PRIu64 ",\"max\":%" PRIu64 "}",
            name, h->n, (double)h->sum / (double)h->n, hpct(h, .5), hpct(h, .9),
            hpct(h, .99), hpct(h, .999), h->max);
}

/* --------------------------------------------------------------- connection */

typedef struct {
    int fd;
    char who[32];
    uint8_t *rb;
    size_t rcap, rlen, rpos;
    obuf out;
    uint32_t frame_max;
    int hb;
    uint64_t last_tx, last_rx;
    int blocked, flow_stop;
    int midframe; /* a message is half written: nothing may go in between */
    uint64_t blocked_at, blocked_ns;
} conn;

typedef struct { int type, chan; uint32_t size; const uint8_t *p; } frame;

static uint64_t g_blocked_ns; /* summed over producers */

/* writes what it can of c->out; 1 when all is gone */
static int flush_try(conn *c)
{
    if (c->midframe) return 0;
    while (c->out.off < c->out.len) {
        ssize_t k = send(c->fd, c->out.p + c->out.off, c->out.len - c->out.off, MSG_NOSIGNAL);
        if (k < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
            if (errno == EINTR) continue;
            if (errno == EPIPE || errno == ECONNRESET) return 0; /* the read side says why */
            die(EX_CLOSED_, "%s: send: %s", c->who, strerror(errno));
        }
        c->out.off += (size_t)k;
        c->last_tx = now_ns();
    }
    c->out.off = c->out.len = 0;
    return 1;
}

static void heartbeat_check(conn *c)
{
    if (!c->hb) return;
    uint64_t t = now_ns();
    if (t - c->last_tx > (uint64_t)c->hb * NS / 2) {
        size_t s = frame_begin(&c->out, 8, 0);
        frame_end(&c->out, s);
        c->last_tx = t;
        flush_try(c);
    }
    if (t - c->last_rx > (uint64_t)c->hb * NS * 2 + NS)
        die(EX_CLOSED_, "%s: no heartbeat from the server for %d s", c->who, 2 * c->hb);
}

/* reads once; >0 bytes, 0 nothing there (after waiting timeout_ms at most) */
static ssize_t fill(conn *c, int timeout_ms)
{
    if (c->rpos) {
        if (c->rpos == c->rlen) c->rpos = c->rlen = 0;
        else if (c->rcap - c->rlen < c->rcap / 2) {
            memmove(c->rb, c->rb + c->rpos, c->rlen - c->rpos);
            c->rlen -= c->rpos;
            c->rpos = 0;
        }
    }
    for (int waited = 0;;) {
        ssize_t k = recv(c->fd, c->rb + c->rlen, c->rcap - c->rlen, 0);
        if (k > 0) {
            c->rlen += (size_t)k;
            c->last_rx = now_ns();
            return k;
        }
        if (k == 0) die(EX_CLOSED_, "%s: the server closed the socket", c->who);
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            die(EX_CLOSED_, "%s: recv: %s", c->who, strerror(errno));
        if (waited || timeout_ms == 0) return 0;
        waited = 1;
        int left = timeout_ms;
        if (c->hb && (left < 0 || left > c->hb * 250)) left = c->hb * 250;
        struct pollfd pf = { c->fd, (short)(POLLIN | (c->out.off < c->out.len ? POLLOUT : 0)), 0 };
        int r = poll(&pf, 1, left);
        if (r > 0 && (pf.revents & POLLOUT)) flush_try(c);
        heartbeat_check(c);
        if (r <= 0) return 0;
    }
}

/* takes one complete frame off the buffer */
static inline int next_frame(conn *c, frame *f)
{
    size_t have = c->rlen - c->rpos;
    if (have < 8) return 0;
    const uint8_t *p = c->rb + c->rpos;
    uint32_t sz = g32(p + 3);
    if (sz + 8u > have) {
        if (sz > c->frame_max)
            die(EX_CLOSED_, "%s: frame of %u bytes, over frame_max %u (type %u)", c->who, sz,
                c->frame_max, p[0]);
        return 0;
    }
    if (p[7 + sz] != 0xCE) die(EX_CLOSED_, "%s: bad frame end (type %u, size %u)", c->who, p[0], sz);
    f->type = p[0];
    f->chan = g16(p + 1);
    f->size = sz;
    f->p = p + 7;
    c->rpos += 8 + (size_t)sz;
    return 1;
}

static void die_close(conn *c, const char *what, const uint8_t *p, uint32_t n)
{
    unsigned code = n >= 2 ? g16(p) : 0, tl = n >= 3 ? p[2] : 0;
    if (tl + 3 > n) tl = 0;
    unsigned cls = 0, mth = 0;
    if (n >= 3 + tl + 4) {
        cls = g16(p + 3 + tl);
        mth = g16(p + 5 + tl);
    }
    die(EX_CLOSED_, "%s: %s closed by the server: %u %.*s (class %u, method %u)", c->who, what, code,
        (int)tl, p + 3, cls, mth);
}

/* what may come at any time; 1 when it was dealt with */
static int common(conn *c, const frame *f)
{
    if (f->type == 8) return 1;
    if (f->type != 1) return 0;
    if (f->size < 4) die(EX_CLOSED_, "%s: short method frame", c->who);
    unsigned cls = g16(f->p), mth = g16(f->p + 2);
    const uint8_t *p = f->p + 4;
    uint32_t n = f->size - 4;
    if (cls == 10 && mth == 50) die_close(c, "connection", p, n);
    if (cls == 20 && mth == 40) die_close(c, "channel", p, n);
    if (cls == 60 && mth == 30) die(EX_CLOSED_, "%s: consumer cancelled by the server", c->who);
    if (cls == 10 && mth == 60) {
        if (!c->blocked) {
            c->blocked = 1;
            c->blocked_at = now_ns();
            fprintf(stderr, "amqpload: %s: connection.blocked: %.*s\n", c->who, n ? p[0] : 0, p + 1);
        }
        return 1;
    }
    if (cls == 10 && mth == 61) {
        if (c->blocked) {
            c->blocked = 0;
            c->blocked_ns += now_ns() - c->blocked_at;
            fprintf(stderr, "amqpload: %s: connection.unblocked\n", c->who);
        }
        return 1;
    }
    if (cls == 20 && mth == 20) { /* channel.flow */
        c->flow_stop = !(n && (p[0] & 1));
        size_t s = method_begin(&c->out, f->chan, 20, 21);
        p8(&c->out, (unsigned)!c->flow_stop);
        frame_end(&c->out, s);
        flush_try(c);
        return 1;
    }
    return 0;
}

/* waits for one method (everything else but errors is dropped) */
static frame await(conn *c, int cls, int mth, const char *what)
{
    uint64_t end = now_ns() + 120 * NS;
    frame f;
    for (;;) {
        while (next_frame(c, &f)) {
            if (f.type == 1 && f.size >= 4 && g16(f.p) == cls && g16(f.p + 2) == mth) return f;
            common(c, &f);
        }
        flush_try(c);
        fill(c, 1000);
        if (now_ns() > end) die(EX_CLOSED_, "%s: no answer to %s for 120 s", c->who, what);
    }
}

static void conn_open(conn *c, const char *who)
{
    memset(c, 0, sizeof *c);
    snprintf(c->who, sizeof c->who, "%s", who);
    c->rcap = 1 << 20;
    if (c->rcap < 4 * (size_t)O.frame_max) c->rcap = 4 * (size_t)O.frame_max;
    c->rb = malloc(c->rcap);
    if (!c->rb) die(EX_USAGE_, "out of memory");
    c->frame_max = O.frame_max;

    struct addrinfo h = { .ai_socktype = SOCK_STREAM }, *res, *a;
    int r = getaddrinfo(O.host, O.port, &h, &res);
    if (r) die(EX_USAGE_, "%s:%s: %s", O.host, O.port, gai_strerror(r));
    c->fd = -1;
    int err = 0;
    for (a = res; a; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd < 0) { err = errno; continue; }
        if (O.rcvbuf) setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &O.rcvbuf, sizeof O.rcvbuf);
        if (connect(c->fd, a->ai_addr, a->ai_addrlen) == 0) break;
        err = errno;
        close(c->fd);
        c->fd = -1;
    }
    freeaddrinfo(res);
    if (c->fd < 0) die(EX_USAGE_, "connect %s:%s: %s", O.host, O.port, strerror(err));
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
    c->last_rx = c->last_tx = now_ns();

    praw(&c->out, "AMQP\0\0\11\1", 8);
    flush_try(c);
    /* a server that wants another protocol answers with a header, not a frame */
    while (c->rlen - c->rpos < 8) fill(c, 10000);
    if (!memcmp(c->rb + c->rpos, "AMQP", 4)) {
        const uint8_t *q = c->rb + c->rpos + 4;
        die(EX_CLOSED_, "the server does not speak AMQP 0-9-1 (it answered AMQP %u.%u.%u.%u)", q[0], q[1], q[2], q[3]);
    }
    await(c, 10, 10, "the protocol header");

    size_t s = method_begin(&c->out, 0, 10, 11), t, t2;
    t = table_begin(&c->out);
    pshort(&c->out, "product"); p8(&c->out, 'S'); plong(&c->out, "amqpload", 8);
    pshort(&c->out, "connection_name"); p8(&c->out, 'S'); plong(&c->out, who, strlen(who));
    pshort(&c->out, "capabilities"); p8(&c->out, 'F');
    t2 = table_begin(&c->out);
    const char *caps[] = { "publisher_confirms", "basic.nack", "consumer_cancel_notify",
                           "connection.blocked", "authentication_failure_close" };
    for (unsigned i = 0; i < sizeof caps / sizeof *caps; i++) {
        pshort(&c->out, caps[i]);
        p8(&c->out, 't');
        p8(&c->out, 1);
    }
    table_end(&c->out, t2);
    table_end(&c->out, t);
    pshort(&c->out, "PLAIN");
    size_t ul = strlen(O.user), pl = strlen(O.pass);
    p32(&c->out, (uint32_t)(ul + pl + 2));
    p8(&c->out, 0); praw(&c->out, O.user, ul);
    p8(&c->out, 0); praw(&c->out, O.pass, pl);
    pshort(&c->out, "en_US");
    frame_end(&c->out, s);
    flush_try(c);

    frame f = await(c, 10, 30, "connection.start-ok");
    if (f.size < 12) die(EX_CLOSED_, "short connection.tune");
    unsigned chmax = g16(f.p + 4), hb = g16(f.p + 10);
    uint32_t fm = g32(f.p + 6);
    if (fm == 0 || fm > O.frame_max) fm = O.frame_max;
    c->frame_max = fm;
    c->hb = !hb || !O.heartbeat ? (O.heartbeat ? O.heartbeat : 0)
                                : ((int)hb < O.heartbeat ? (int)hb : O.heartbeat);
    s = method_begin(&c->out, 0, 10, 31);
    p16(&c->out, chmax);
    p32(&c->out, fm);
    p16(&c->out, (unsigned)c->hb);
    frame_end(&c->out, s);
    s = method_begin(&c->out, 0, 10, 40);
    pshort(&c->out, O.vhost);
    p8(&c->out, 0);
    p8(&c->out, 0);
    frame_end(&c->out, s);
    flush_try(c);
    await(c, 10, 41, "connection.open");
    s = method_begin(&c->out, 1, 20, 10);
    p8(&c->out, 0);
    frame_end(&c->out, s);
    flush_try(c);
    await(c, 20, 11, "channel.open");
}

/* channel.close is answered in order: when it is, the server has handled all we sent */
static void channel_sync_close(conn *c)
{
    size_t s = method_begin(&c->out, 1, 20, 40);
    p16(&c->out, 200);
    pshort(&c->out, "bye");
    p16(&c->out, 0);
    p16(&c->out, 0);
    frame_end(&c->out, s);
    flush_try(c);
    await(c, 20, 41, "channel.close");
}

static void conn_close(conn *c)
{
    size_t s = method_begin(&c->out, 0, 10, 50);
    p16(&c->out, 200);
    pshort(&c->out, "bye");
    p16(&c->out, 0);
    p16(&c->out, 0);
    frame_end(&c->out, s);
    flush_try(c);
    await(c, 10, 51, "connection.close");
    close(c->fd);
    free(c->rb);
    free(c->out.p);
}

/* -------------------------------------------------------------- shared state */

static uint8_t *pool;      /* filler bytes */
static unsigned fill_mod;  /* how many different fillers */
#define FILL_STEP 257
static int fanout, nsets;  /* nsets: how many copies of each message are expected */
static uint64_t *bitmap;   /* [set][producer][word] */
static uint64_t bm_words;  /* per producer */
static uint64_t *quota;    /* messages per producer */
static uint64_t total_expected;

static uint64_t g_sent, g_confirmed, g_unique, g_delivered;
static int g_done, g_producers_left, g_stalled;
static uint64_t g_t0;
static double g_cpu0;
static pthread_barrier_t barrier;

static uint64_t p_last_count, p_last_t;
static double p_last_cpu;
static void progress(const char *what, uint64_t count)
{
    pthread_mutex_lock(&out_mu);
    uint64_t t = now_ns();
    if (count > p_last_count) {
        double dt = (double)(t - (p_last_t ? p_last_t : g_t0)) / 1e9;
        printf("{\"progress\":\"%s\",\"count\":%" PRIu64 ",\"t\":%.3f,\"rate\":%.0f", what, count,
               (double)(t - g_t0) / 1e9, (double)(count - p_last_count) / (dt > 0 ? dt : 1e-9));
        double cpu;
        uint64_t rss;
        if (O.server_pid && tree_usage(O.server_pid, &cpu, &rss) == 0) {
            printf(",\"server_rss\":%" PRIu64 ",\"server_cpu_s\":%.4f,\"server_us_per_msg\":%.2f", rss,
                   cpu - g_cpu0, (cpu - (p_last_t ? p_last_cpu : g_cpu0)) * 1e6 / (double)(count - p_last_count));
            p_last_cpu = cpu;
        }
        printf("}\n");
        fflush(stdout);
        p_last_count = count;
        p_last_t = t;
    }
    pthread_mutex_unlock(&out_mu);
}
static inline void count_up(uint64_t *ctr, uint64_t k, const char *what)
{
    uint64_t o = __atomic_fetch_add(ctr, k, __ATOMIC_RELAXED);
    if (O.progress && what && o / O.progress != (o + k) / O.progress)
        progress(what, (o + k) / O.progress * O.progress);
}

static void queue_name(char *b, size_t n, long i)
{
    if (O.nqueues == 1) snprintf(b, n, "%s", O.queue);
    else snprintf(b, n, "%s.%05ld", O.queue, i);
}

/* ------------------------------------------------------------ message shapes */

/*
 * What a message looks like follows from its sequence number, its producer and
 * the run id: the consumer knows what has to arrive.
 */
static int varied;                 /* messages differ in length: no pre-encoded slots */
static uint32_t size_lo, size_hi;  /* of a body */
static uint32_t size_small;        /* the most of one that is not a large one (--large) */

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}
static inline uint64_t shape_of(uint64_t seq, uint32_t producer_id)
{
    return mix(seq * 0x9e3779b97f4a7c15ull + ((uint64_t)O.run_id << 32 | producer_id) * 0xd1342543de82ef95ull + 1);
}
/* uniform from 0 to n-1 */
static inline uint64_t pick(uint64_t h, uint64_t n) { return (h >> 32) * n >> 32; }

static inline uint32_t size_of(uint64_t h)
{
    if (O.large_size && !pick(mix(h ^ 0x6c61726765ull), O.large_every)) return O.large_size;
    return O.vary_size ? size_lo + (uint32_t)pick(h, size_small - size_lo + 1ull) : O.size;
}
static inline uint32_t stamp_len(uint64_t size) { return size >= 24 ? 24 : 16; }

/* -- properties (--vary-props) */

#define F_CTYPE 0x8000u
#define F_HEADERS 0x2000u
#define F_DMODE 0x1000u
#define F_PRIO 0x0800u
#define F_MSGID 0x0080u
#define F_TIME 0x0040u
#define PROPS_MAX 512

static const char *const CTYPES[8] = {
    "application/json", "text/plain", "application/octet-stream", "text/plain; charset=utf-8",
    "application/x-python-serialize", "application/x-protobuf", "application/vnd.acme.order.v2+json", "a/b",
};
static const char *const HKEYS[16] = {
    "id", "task", "retries", "trace-parent", "tenant", "lang", "eta", "is_replay",
    "origin", "root_id", "schema_version", "shadow", "timelimit", "argsrepr", "k", "correlation.group",
};
static struct { uint8_t n, b[64]; } ctypes[8], hkeys[16];
#define TEXT_LEN 4096
static uint8_t text[TEXT_LEN + 64]; /* printable bytes for strings */

static void shapes_init(void)
{
    for (int i = 0; i < 8; i++) memcpy(ctypes[i].b, CTYPES[i], ctypes[i].n = (uint8_t)strlen(CTYPES[i]));
    for (int i = 0; i < 16; i++) memcpy(hkeys[i].b, HKEYS[i], hkeys[i].n = (uint8_t)strlen(HKEYS[i]));
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"[mix(i + 1) & 63];
}

static inline uint8_t *w32(uint8_t *d, uint32_t v) { v = __builtin_bswap32(v); memcpy(d, &v, 4); return d + 4; }
static inline uint8_t *w64(uint8_t *d, uint64_t v) { v = __builtin_bswap64(v); memcpy(d, &v, 8); return d + 8; }
static inline uint8_t *wmem(uint8_t *d, const void *s, size_t n) { memcpy(d, s, n); return d + n; }
static inline uint8_t *whex(uint8_t *d, uint64_t v)
{
    int n = v ? (67 - __builtin_clzll(v)) / 4 : 1;
    for (int i = n - 1; i >= 0; i--, v >>= 4) d[i] = (uint8_t)"0123456789abcdef"[v & 15];
    return d + n;
}

/* flags and property list; at most PROPS_MAX bytes. *dmode: where the delivery mode is */
static uint8_t *put_props(uint8_t *d, uint64_t seq, uint32_t producer_id, uint64_t h, uint8_t **dmode)
{
    unsigned flags = F_DMODE | (O.priority >= 0 ? F_PRIO : 0);
    uint64_t g = mix(h ^ 0x70726f7073ull);
    if (O.vary_props) flags |= F_CTYPE | F_HEADERS | F_MSGID | F_TIME;
    *d++ = (uint8_t)(flags >> 8);
    *d++ = (uint8_t)flags;
    if (O.vary_props) {
        unsigned ct = g & 7;
        *d++ = ctypes[ct].n;
        d = wmem(d, ctypes[ct].b, ctypes[ct].n);
        uint8_t *table = d;
        d += 4;
        unsigned n = (unsigned)pick(g, 5), at = g >> 3 & 15, step = (g >> 6 & 14) | 1; /* odd: no key twice */
        for (unsigned i = 0; i < n; i++, at = (at + step) & 15) {
            uint64_t v = mix(g + i + 1);
            *d++ = hkeys[at].n;
            d = wmem(d, hkeys[at].b, hkeys[at].n);
            switch (v & 3) {
            case 0: *d++ = 't'; *d++ = v >> 8 & 1; break;
            case 1: *d++ = 'I'; d = w32(d, (uint32_t)(v >> 8)); break;
            case 2: *d++ = 'l'; d = w64(d, v >> (v >> 2 & 31)); break;
            case 3: {
                uint32_t len = v >> 8 & 31;
                *d++ = 'S';
                d = w32(d, len);
                d = wmem(d, text + (v >> 16) % TEXT_LEN, len);
            }
            }
        }
        w32(table, (uint32_t)(d - table - 4));
    }
    if (dmode) *dmode = d;
    *d++ = O.persistent ? 2 : 1;
    if (O.priority >= 0) *d++ = (uint8_t)(seq % (uint64_t)(O.priority + 1));
    if (O.vary_props) {
        uint8_t *id = d++; /* message_id: producer and number, then 0 to 23 other characters */
        d = whex(d, producer_id);
        *d++ = '-';
        d = whex(d, seq);
        *d++ = '-';
        d = wmem(d, text + (g >> 16) % TEXT_LEN, pick(g << 32, 24));
        *id = (uint8_t)(d - id - 1);
        d = w64(d, 1600000000ull + (g >> 20 & 0x7ffffff));
    }
    return d;
}

/* -- what the consumer makes of the properties: equal in meaning, if not in bytes */

typedef struct { const uint8_t *p; size_t n; } bytes;

static int split_props(bytes b, unsigned *flags, bytes v[16])
{
    if (b.n < 2) return -1;
    *flags = g16(b.p);
    if (*flags & 3) return -1;
    const uint8_t *p = b.p + 2, *end = b.p + b.n;
    for (int bit = 15; bit >= 2; bit--) {
        v[bit].n = 0;
        if (!(*flags >> bit & 1)) continue;
        size_t left = (size_t)(end - p), skip = 0, n;
        if (bit == 13) {
            if (left < 4) return -1;
            skip = 4;
            n = g32(p);
        } else if (bit == 12 || bit == 11) n = 1;
        else if (bit == 6) n = 8;
        else {
            if (left < 1) return -1;
            skip = 1;
            n = p[0];
        }
        if (left - skip < n) return -1;
        v[bit].p = p + skip;
        v[bit].n = n;
        p += skip + n;
    }
    return p == end ? 0 : -1;
}

typedef struct { bytes key, val; char type; } entry;

/* takes one entry off a table; 1 done, 0 none left, -1 malformed */
static int next_entry(bytes *t, entry *e)
{
    if (!t->n) return 0;
    size_t k = t->p[0];
    if (t->n < k + 2) return -1;
    e->key = (bytes){ t->p + 1, k };
    e->type = (char)t->p[1 + k];
    const uint8_t *p = t->p + 2 + k;
    size_t left = t->n - 2 - k, n, skip = 0;
    switch (e->type) {
    case 't': case 'b': case 'B': n = 1; break;
    case 's': case 'u': case 'U': n = 2; break;
    case 'I': case 'i': case 'f': n = 4; break;
    case 'l': case 'L': case 'd': case 'T': n = 8; break;
    case 'D': n = 5; break;
    case 'V': n = 0; break;
    case 'S': case 'x': case 'A': case 'F':
        if (left < 4) return -1;
        skip = 4;
        n = g32(p);
        break;
    default: return -1;
    }
    if (left - skip < n) return -1;
    e->val = (bytes){ p + skip, n };
    t->p = p + skip + n;
    t->n = left - skip - n;
    return 1;
}
static int int_value(const entry *e, int64_t *v)
{
    const uint8_t *p = e->val.p;
    switch (e->type) {
    case 'b': *v = (int8_t)p[0]; return 1;
    case 'B': *v = p[0]; return 1;
    case 's': case 'U': *v = (int16_t)g16(p); return 1;
    case 'u': *v = g16(p); return 1;
    case 'I': *v = (int32_t)g32(p); return 1;
    case 'i': *v = g32(p); return 1;
    case 'l': case 'L': *v = (int64_t)g64(p); return 1;
    }
    return 0;
}
static int same_bytes(bytes a, bytes b) { return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n)); }
static int same_value(const entry *a, const entry *b)
{
    int64_t x, y;
    if (int_value(a, &x)) return int_value(b, &y) && x == y;
    return a->type == b->type && same_bytes(a->val, b->val);
}

/* every entry of a is in b, with the same value; x_too: leave out those called x-... */
static int table_within(bytes a, bytes b, int x_too)
{
    entry e, f;
    int r, q = 0;
    while ((r = next_entry(&a, &e)) > 0) {
        if (x_too && e.key.n > 2 && !memcmp(e.key.p, "x-", 2)) continue;
        int found = 0;
        for (bytes t = b; (q = next_entry(&t, &f)) > 0;)
            if (same_bytes(e.key, f.key)) found += same_value(&e, &f) ? 1 : 2;
        if (q < 0 || found != 1) return 0;
    }
    return r == 0;
}

/* a broker may write integers in another width, and add x- headers of its own */
static int same_props(bytes want, bytes got)
{
    unsigned wf, gf;
    bytes w[16], g[16];
    if (split_props(want, &wf, w) || split_props(got, &gf, g)) return 0;
    if ((wf | F_HEADERS) != (gf | F_HEADERS)) return 0;
    for (int bit = 15; bit >= 2; bit--)
        if (bit != 13 && !same_bytes(w[bit], g[bit])) return 0;
    return table_within(w[13], g[13], 0) && table_within(g[13], w[13], 1);
}

/* -- routing keys (--keys) and bindings */

/*
 * Key i belongs to queue i mod Q.  It has 2 to 5 words, of which one ("d" and i)
 * is in no other key; so each of its bindings, with * or # or neither, matches
 * this key alone, and every queue gets exactly the messages meant for it.
 */
static const char *const WORDS[32] = {
    "order", "eu", "created", "sensor", "warehouse", "us", "temp", "audit", "mail", "a", "invoice", "north",
    "payment", "status", "retry", "v2", "stock", "de", "web", "customer", "error", "info", "b", "south",
    "notification", "job", "x", "billing", "fr", "update", "telemetry", "delete",
};
static const char *const DECOYS[8] = { "archive", "z", "shadow", "legacy", "internal", "test", "recommendation", "qa" };
static uint8_t *keys;       /* short strings, length first */
static uint32_t *key_start; /* where key i is in them */

typedef struct { int n, own; char w[5][24]; } keywords;

static void key_words(long i, keywords *k)
{
    uint64_t h = mix((uint64_t)i * 0x9e3779b97f4a7c15ull + 7);
    k->n = 2 + (int)(h & 3);
    k->own = (int)((h >> 2 & 255) % (unsigned)k->n);
    for (int j = 0; j < k->n; j++)
        if (j == k->own) snprintf(k->w[j], sizeof k->w[j], "d%ld", i);
        else snprintf(k->w[j], sizeof k->w[j], "%s", WORDS[h >> (16 + 5 * j) & 31]);
}
static void join_words(char *out, const keywords *k, int from, int to)
{
    for (int j = from; j < to; j++) {
        if (j > from) *out++ = '.';
        out = stpcpy(out, k->w[j]);
    }
    *out = 0;
}

/* the patterns that bind key i to its queue: 1 or 2 */
static int key_patterns(long i, char out[2][160])
{
    keywords k;
    key_words(i, &k);
    char part[160];
    unsigned r = mix((uint64_t)i + 99) >> 7 & 7, star = (unsigned)(k.own + 1) % (unsigned)k.n;
    int n = 0;
    if (r < 4 || r == 7) join_words(out[n++], &k, 0, k.n);
    if (r == 4 || r == 7) { /* 7: two bindings match, the queue must still get one message */
        strcpy(k.w[star], "*");
        join_words(out[n++], &k, 0, k.n);
    }
    if (r == 5) {
        join_words(part, &k, 0, k.own + 1);
        snprintf(out[n++], 160, "%.150s.#", part);
    }
    if (r == 6) {
        join_words(part, &k, k.own, k.n);
        snprintf(out[n++], 160, "#.%.150s", part);
    }
    return n;
}

/* binding j of --bindings: it begins or ends like real keys, but has a word that none has */
static void extra_pattern(long j, char *out, size_t n)
{
    uint64_t h = mix((uint64_t)j * 0x9e3779b97f4a7c15ull + 31);
    const char *a = WORDS[h >> 8 & 31], *b = WORDS[h >> 16 & 31];
    char x[32];
    snprintf(x, sizeof x, "%s%ld", DECOYS[h >> 24 & 7], j);
    switch (j & 7) {
    case 0: snprintf(out, n, "%s.*.%s", a, x); break;
    case 1: snprintf(out, n, "%s.%s.#.%s", a, b, x); break;
    case 2: snprintf(out, n, "*.%s.%s", x, b); break;
    case 3: snprintf(out, n, "#.%s", x); break;
    case 4: snprintf(out, n, "%s.*.%s.*", a, x); break;
    case 5: snprintf(out, n, "%s.#.%s.#", a, x); break;
    case 6: snprintf(out, n, "*.*.%s.%s", b, x); break;
    case 7: snprintf(out, n, "%s.%s.*.*.%s", a, b, x); break;
    }
}
static long extra_queues(void)
{
    long n = (O.nbindings + 15) / 16;
    return n > 50 ? 50 : n;
}
static void extra_queue_name(char *b, size_t n, long i) { snprintf(b, n, "%s.x%05ld", O.queue, i); }

static void keys_init(void)
{
    obuf b = { 0 };
    keywords k;
    char key[160];
    key_start = xmalloc((size_t)O.nkeys * sizeof *key_start);
    for (long i = 0; i < O.nkeys; i++) {
        key_words(i, &k);
        join_words(key, &k, 0, k.n);
        key_start[i] = (uint32_t)b.len;
        pshort(&b, key);
    }
    keys = b.p;
}
/* message seq goes to queue seq mod Q, by any of that queue's keys */
static inline const uint8_t *key_of(uint64_t seq, uint64_t h)
{
    uint64_t nq = (uint64_t)O.nqueues, q = seq % nq, n = ((uint64_t)O.nkeys - q + nq - 1) / nq;
    return keys + key_start[q + nq * pick(mix(h ^ 0x6b657973ull), n)];
}

/* ------------------------------------------------------------------ producer */

typedef struct {
    int id;
    pthread_t th;
    conn c;
    uint64_t n, sent, acked, nacked, returned, bad;
    uint64_t t_start, t_end;
    /* confirms: a ring of outstanding tags */
    uint64_t *bits, *stamp;
    uint64_t ring, low; /* low: lowest tag not yet confirmed */
    hist clat;
    uint64_t bytes; /* of bodies */
    uint8_t *slots;
    uint32_t nslots, slot_len, body_at, key_at;
    /* without slots: the start of basic.publish, up to the routing key; the key; room to encode in */
    obuf head, key;
    uint8_t *enc;
} producer;

static void confirm_one(producer *p, uint64_t tag, int nack, uint64_t t)
{
    uint64_t i = tag & (p->ring - 1);
    if (tag < p->low || tag > p->sent || (p->bits[i >> 6] >> (i & 63) & 1)) {
        p->bad++;
        return;
    }
    p->bits[i >> 6] |= 1ull << (i & 63);
    hadd(&p->clat, (t - p->stamp[i]) / 1000);
    if (nack) p->nacked++;
    else p->acked++;
}

static void on_confirm(producer *p, uint64_t tag, int multiple, int nack)
{
    uint64_t t = p->c.last_rx, before = p->acked + p->nacked;
    if (multiple) {
        uint64_t upto = tag ? tag : p->sent;
        if (upto > p->sent) { p->bad++; upto = p->sent; }
        for (uint64_t k = p->low; k <= upto; k++) {
            uint64_t i = k & (p->ring - 1);
            if (!(p->bits[i >> 6] >> (i & 63) & 1)) confirm_one(p, k, nack, t);
        }
    } else
        confirm_one(p, tag, nack, t);
    while (p->low <= p->sent) {
        uint64_t i = p->low & (p->ring - 1);
        if (!(p->bits[i >> 6] >> (i & 63) & 1)) break;
        p->bits[i >> 6] &= ~(1ull << (i & 63));
        p->low++;
    }
    uint64_t k = p->acked + p->nacked - before;
    if (k) count_up(&g_confirmed, k, "confirmed");
}

static void producer_input(producer *p)
{
    frame f;
    while (next_frame(&p->c, &f)) {
        if (f.type == 1 && f.size >= 13 && g16(f.p) == 60) {
            unsigned m = g16(f.p + 2);
            if (m == 80) { on_confirm(p, g64(f.p + 4), f.p[12] & 1, 0); continue; }
            if (m == 120) { on_confirm(p, g64(f.p + 4), f.p[12] & 1, 1); continue; }
        }
        if (f.type == 1 && f.size >= 4 && g16(f.p) == 60 && g16(f.p + 2) == 50) {
            p->returned++;
            continue;
        }
        if (f.type == 2 || f.type == 3) continue; /* content of a returned message */
        common(&p->c, &f);
    }
}

static void build_slots(producer *p)
{
    char name[300];
    const char *key;
    if (fanout) key = "";
    else {
        queue_name(name, sizeof name, 0);
        key = name;
    }
    obuf b = { 0 };
    uint32_t len = 0;
    for (uint32_t i = 0;; i++) {
        if (i == 1) { /* the length of one message is known: how many slots */
            len = (uint32_t)b.len;
            uint32_t want = (2 * O.chunk + len - 1) / len, k = fill_mod;
            if (k < 2) k = 2;
            while (k < want && k < 16384) k *= 2;
            p->nslots = k;
        }
        if (i && i == p->nslots) break;
        size_t s = method_begin(&b, 1, 60, 40);
        p16(&b, 0);
        pshort(&b, O.exchange);
        pshort(&b, key);
        if (!i) p->key_at = (uint32_t)b.len - 5;
        p8(&b, O.mandatory ? 1 : 0);
        frame_end(&b, s);
        s = frame_begin(&b, 2, 1);
        p16(&b, 60);
        p16(&b, 0);
        p64(&b, O.size);
        p16(&b, O.priority >= 0 ? 0x1800 : 0x1000);
        p8(&b, O.persistent ? 2 : 1);
        if (O.priority >= 0) p8(&b, 0);
        frame_end(&b, s);
        uint32_t done = 0, most = p->c.frame_max - 8;
        const uint8_t *src = pool + (i % fill_mod) * FILL_STEP;
        while (done < O.size) {
            uint32_t k = O.size - done < most ? O.size - done : most;
            s = frame_begin(&b, 3, 1);
            if (!i && !done) p->body_at = (uint32_t)b.len;
            praw(&b, src + done, k);
            frame_end(&b, s);
            done += k;
        }
        if (i && b.len != (size_t)len * (i + 1)) die(EX_USAGE_, "internal: slots differ in length");
    }
    p->slot_len = len;
    p->slots = b.p;
}

static void build_heads(producer *p)
{
    char name[300];
    queue_name(name, sizeof name, 0);
    method_begin(&p->head, 1, 60, 40);
    p16(&p->head, 0);
    pshort(&p->head, O.exchange);
    pshort(&p->key, fanout ? "" : name);
    size_t most = p->c.frame_max - 8;
    p->enc = xmalloc(O.chunk + p->head.len + 256 + 2 + 22 + PROPS_MAX + size_hi + 8 * (size_hi / most + 2));
}

static inline uint8_t *encode_frame_head(uint8_t *d, int type, uint32_t size)
{
    *d++ = (uint8_t)type;
    *d++ = 0;
    *d++ = 1;
    return w32(d, size);
}

/* one message, whole */
static uint8_t *encode(producer *p, uint8_t *d, uint64_t seq, uint64_t ts, uint64_t h, uint32_t size)
{
    uint8_t *s = d;
    d = wmem(d, p->head.p, p->head.len);
    if (O.nkeys) {
        const uint8_t *k = key_of(seq, h);
        d = wmem(d, k, k[0] + 1u);
    } else {
        d = wmem(d, p->key.p, p->key.len);
        if (O.nqueues > 1 && !fanout) {
            unsigned q = (unsigned)(seq % (uint64_t)O.nqueues);
            for (int j = 1; j <= 5; j++) { d[-j] = (uint8_t)('0' + q % 10); q /= 10; }
        }
    }
    *d++ = O.mandatory ? 1 : 0;
    w32(s + 3, (uint32_t)(d - s - 7));
    *d++ = 0xCE;

    s = d;
    d = encode_frame_head(d, 2, 0);
    d = w32(d, 60u << 16);
    d = w64(d, size);
    d = put_props(d, seq, (uint32_t)p->id, h, NULL);
    w32(s + 3, (uint32_t)(d - s - 7));
    *d++ = 0xCE;

    uint32_t done = 0, most = p->c.frame_max - 8;
    const uint8_t *src = pool + (seq % fill_mod) * FILL_STEP;
    while (done < size) {
        uint32_t n = size - done < most ? size - done : most;
        d = encode_frame_head(d, 3, n);
        wmem(d, src + done, n);
        if (!done) {
            uint32_t id = (uint32_t)p->id, run = O.run_id;
            memcpy(d, &seq, 8);
            memcpy(d + 8, &id, 4);
            memcpy(d + 12, &run, 4);
            if (stamp_len(size) == 24) memcpy(d + 16, &ts, 8);
        }
        d += n;
        *d++ = 0xCE;
        done += n;
    }
    return d;
}

static void write_slots(producer *p, const uint8_t *d, size_t n)
{
    conn *c = &p->c;
    while (!flush_try(c)) {
        struct pollfd pf = { c->fd, POLLIN | POLLOUT, 0 };
        poll(&pf, 1, 1000);
        fill(c, 0);
        producer_input(p);
    }
    c->midframe = 1;
    while (n) {
        ssize_t k = send(c->fd, d, n, MSG_NOSIGNAL);
        if (k > 0) {
            d += k;
            n -= (size_t)k;
            c->last_tx = now_ns();
            continue;
        }
        if (k < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            /* read what the server had to say before it went */
            for (int i = 0; i < 10; i++) {
                fill(c, 200);
                producer_input(p);
            }
            die(EX_CLOSED_, "%s: send: %s", c->who, strerror(errno));
        }
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            die(EX_CLOSED_, "%s: send: %s", c->who, strerror(errno));
        struct pollfd pf = { c->fd, POLLIN | POLLOUT, 0 };
        int r = poll(&pf, 1, 1000);
        if (r > 0 && (pf.revents & (POLLIN | POLLERR | POLLHUP))) {
            fill(c, 0);
            producer_input(p);
        }
        if (c->hb && now_ns() - c->last_rx > (uint64_t)c->hb * 3 * NS)
            die(EX_CLOSED_, "%s: no heartbeat from the server", c->who);
    }
    c->midframe = 0;
}

static void *producer_main(void *arg)
{
    producer *p = arg;
    conn *c = &p->c;
    if (O.window) {
        size_t s = method_begin(&c->out, 1, 85, 10);
        p8(&c->out, 0);
        frame_end(&c->out, s);
        flush_try(c);
        await(c, 85, 11, "confirm.select");
        p->ring = 65536;
        while (p->ring < 16ull * O.window) p->ring *= 2;
        p->bits = xmalloc(p->ring / 8);
        p->stamp = xmalloc(p->ring * 8);
    }
    p->low = 1;
    uint32_t per_chunk = UINT32_MAX;
    if (varied) build_heads(p);
    else {
        build_slots(p);
        per_chunk = O.chunk / p->slot_len;
        if (!per_chunk) per_chunk = 1;
    }
    double rate = O.rate / O.producers;
    int patch_key = O.nqueues > 1 && !fanout;

    pthread_barrier_wait(&barrier);
    uint64_t t0 = g_t0, next_hb = 0;
    p->t_start = now_ns();
    while (p->sent < p->n) {
        if (fill(c, 0) > 0) producer_input(p);
        uint64_t t = now_ns();
        if (t > next_hb) {
            heartbeat_check(c);
            next_hb = t + NS;
            if (O.max_time > 0 && (double)(t - t0) / 1e9 > O.max_time) {
                __atomic_fetch_sub(&total_expected, (p->n - p->sent) * (uint64_t)nsets, __ATOMIC_RELAXED);
                p->n = p->sent;
                break;
            }
        }
        if (c->blocked || c->flow_stop) {
            if (fill(c, 1000) > 0) producer_input(p);
            continue;
        }
        uint64_t room = p->n - p->sent;
        if (room > per_chunk) room = per_chunk;
        if (O.window) {
            uint64_t outst = p->sent - p->acked - p->nacked;
            uint64_t w = outst >= O.window ? 0 : O.window - outst;
            if (p->sent + 1 - p->low + w >= p->ring) w = 0;
            if (w == 0) {
                if (fill(c, 1000) > 0) producer_input(p);
                continue;
            }
            if (room > w) room = w;
        }
        if (rate > 0) {
            uint64_t due = (uint64_t)((double)(t - t0) * rate / 1e9) + 1;
            if (due <= p->sent) {
                uint64_t at = t0 + (uint64_t)((double)p->sent * 1e9 / rate);
                if (at > t) {
                    struct timespec w = { 0, (long)((at - t) > 100000000 ? 100000000 : (at - t)) };
                    struct pollfd pf = { c->fd, POLLIN, 0 };
                    ppoll(&pf, 1, &w, NULL);
                }
                continue;
            }
            if (room > due - p->sent) room = due - p->sent;
        }
        if (varied) {
            uint8_t *d = p->enc;
            uint64_t k = 0;
            for (; k < room && (!k || (size_t)(d - p->enc) < O.chunk); k++) {
                uint64_t seq = p->sent + k, h = shape_of(seq, (uint32_t)p->id);
                uint64_t ts = rate > 0 ? t0 + (uint64_t)((double)seq * 1e9 / rate) : t;
                uint32_t size = size_of(h);
                uint8_t *e = encode(p, d, seq, ts, h, size);
                if (k && (size_t)(e - p->enc) > O.chunk) break; /* for the next write, then */
                d = e;
                p->bytes += size;
                if (O.window) p->stamp[(seq + 1) & (p->ring - 1)] = ts;
            }
            p->sent += k;
            write_slots(p, p->enc, (size_t)(d - p->enc));
            count_up(&g_sent, k, O.window ? NULL : "sent");
            continue;
        }

        uint32_t slot = (uint32_t)(p->sent % p->nslots);
        if (room > p->nslots - slot) room = p->nslots - slot;

        uint8_t *base = p->slots + (size_t)slot * p->slot_len, *d = base;
        for (uint64_t k = 0; k < room; k++, d += p->slot_len) {
            uint64_t seq = p->sent + k;
            uint64_t ts = rate > 0 ? t0 + (uint64_t)((double)seq * 1e9 / rate) : t;
            uint8_t *b = d + p->body_at;
            memcpy(b, &seq, 8);
            uint32_t id = (uint32_t)p->id, run = O.run_id;
            memcpy(b + 8, &id, 4);
            memcpy(b + 12, &run, 4);
            if (stamp_len(O.size) == 24) memcpy(b + 16, &ts, 8);
            if (patch_key) {
                unsigned q = (unsigned)(seq % (uint64_t)O.nqueues);
                uint8_t *kp = d + p->key_at;
                for (int j = 4; j >= 0; j--) { kp[j] = (uint8_t)('0' + q % 10); q /= 10; }
            }
            /* the priority is the last byte before the header frame's end octet */
            if (O.priority >= 0) d[p->body_at - 9] = (uint8_t)(seq % (uint64_t)(O.priority + 1));
            if (O.window) p->stamp[(seq + 1) & (p->ring - 1)] = ts;
        }
        p->bytes += room * O.size;
        p->sent += room; /* before the write: a confirm may come while it is under way */
        write_slots(p, base, (size_t)room * p->slot_len);
        count_up(&g_sent, room, O.window ? NULL : "sent");
    }
    while (O.window && p->acked + p->nacked < p->sent) {
        if (fill(c, 1000) > 0) producer_input(p);
        if (now_ns() - c->last_rx > (uint64_t)(O.idle_timeout * 1e9) && !c->blocked) {
            fprintf(stderr, "amqpload: %s: %" PRIu64 " confirms missing after %.0f s\n", c->who,
                    p->sent - p->acked - p->nacked, O.idle_timeout);
            g_stalled = 1;
            break;
        }
    }
    if (p->nacked) __atomic_fetch_sub(&total_expected, p->nacked * (uint64_t)nsets, __ATOMIC_RELAXED);
    if (!g_stalled) channel_sync_close(c);
    p->t_end = now_ns();
    __atomic_fetch_sub(&g_producers_left, 1, __ATOMIC_RELAXED);
    if (c->blocked) c->blocked_ns += now_ns() - c->blocked_at;
    __atomic_fetch_add(&g_blocked_ns, c->blocked_ns, __ATOMIC_RELAXED);
    if (!g_stalled) conn_close(c);
    return NULL;
}

/* ------------------------------------------------------------------ consumer */

typedef struct {
    int id;
    pthread_t th;
    conn c;
    uint64_t delivered, unique, dup, redelivered, redel_dup, reordered, corrupt, foreign;
    uint64_t misrouted, bad_props, bytes;
    uint64_t t_first, t_last;
    uint64_t *last; /* [queue][producer][priority class] : seq+1 */
    hist lat;
    /* content being received */
    int st; /* 0 none, 1 header awaited, 2 body awaited */
    uint64_t tag, body_size, got;
    int redel;
    long qi;
    uint8_t *acc;
    uint64_t acc_cap;
    uint8_t rkey[256];  /* as delivered, length first (--keys) */
    uint8_t *props;     /* as delivered, from the flags on (--vary-props) */
    size_t nprops, props_cap;
    uint64_t unacked, last_tag;
} consumer;

static void put_ack(consumer *k, uint64_t tag, int multiple)
{
    uint8_t *q = ob_room(&k->c.out, 21);
    static const uint8_t h[11] = { 1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80 };
    memcpy(q, h, 11);
    uint64_t v = __builtin_bswap64(tag);
    memcpy(q + 11, &v, 8);
    q[19] = (uint8_t)multiple;
    q[20] = 0xCE;
    k->c.out.len += 21;
}

static int props_ok(consumer *k, uint64_t seq, uint32_t pid, uint64_t h)
{
    uint8_t want[PROPS_MAX], *dm;
    size_t n = (size_t)(put_props(want, seq, pid, h, &dm) - want), at = (size_t)(dm - want);
    /* a backlog's consumer need not know whether -D was given */
    int either = !O.persistent && !strcmp(O.mode, "consume");
    if (either && k->nprops == n && k->props[at] == 2) *dm = 2;
    if (k->nprops == n && !memcmp(k->props, want, n)) return 1;
    bytes got = { k->props, k->nprops }, w = { want, n };
    *dm = O.persistent ? 2 : 1;
    if (same_props(w, got)) return 1;
    *dm = 2;
    return either && same_props(w, got);
}

static void message(consumer *k, const uint8_t *b, uint64_t n)
{
    k->delivered++;
    k->bytes += n;
    k->tag = 0;
    if (n < size_lo || n > size_hi) {
        k->foreign++;
        return;
    }
    uint64_t seq;
    uint32_t pid, run;
    memcpy(&seq, b, 8);
    memcpy(&pid, b + 8, 4);
    memcpy(&run, b + 12, 4);
    if (run != O.run_id || pid >= (uint32_t)O.producers || seq >= quota[pid]) {
        k->foreign++;
        return;
    }
    uint32_t stamp = stamp_len(n);
    uint64_t h = varied ? shape_of(seq, pid) : 0;
    if ((varied && n != size_of(h)) ||
        (n > stamp && memcmp(b + stamp, pool + (seq % fill_mod) * FILL_STEP + stamp, n - stamp)))
        k->corrupt++;
    if (O.vary_props && !props_ok(k, seq, pid, h)) k->bad_props++;
    if (O.nqueues > 1 && !fanout && (uint64_t)k->qi != seq % (uint64_t)O.nqueues) k->misrouted++;
    else if (O.nkeys) {
        const uint8_t *key = key_of(seq, h);
        if (memcmp(key, k->rkey, key[0] + 1u)) k->misrouted++;
    }
    if (stamp == 24) {
        uint64_t ts, t = k->c.last_rx;
        memcpy(&ts, b + 16, 8);
        if (ts <= t) hadd(&k->lat, (t - ts) / 1000);
    }
    unsigned ncls = O.priority >= 0 ? (unsigned)O.priority + 1 : 1;
    uint64_t *last = &k->last[((uint64_t)k->qi * (unsigned)O.producers + pid) * ncls + seq % ncls];
    if (k->redel) k->redelivered++;
    else if (seq < *last) k->reordered++;
    if (seq + 1 > *last) *last = seq + 1;
    uint64_t set = fanout ? (uint64_t)k->qi : 0;
    uint64_t *w = &bitmap[(set * (unsigned)O.producers + pid) * bm_words + (seq >> 6)];
    uint64_t bit = 1ull << (seq & 63), old;
    if (O.consumers > 1) old = __atomic_fetch_or(w, bit, __ATOMIC_RELAXED);
    else {
        old = *w;
        *w |= bit;
    }
    if (old & bit) {
        if (k->redel) k->redel_dup++;
        else k->dup++;
    } else
        k->unique++;
}

static void after_message(consumer *k, uint64_t tag)
{
    if (O.no_ack) return;
    k->unacked++;
    k->last_tag = tag;
    if (k->unacked >= O.ackevery && !O.no_final_ack) {
        put_ack(k, tag, O.ackevery > 1);
        k->unacked = 0;
    }
}

/* 1 when enough has been seen */
static int consumer_input(consumer *k)
{
    conn *c = &k->c;
    frame f;
    uint64_t u0 = k->unique, d0 = k->delivered;
    int stop = 0;
    while (!stop && next_frame(c, &f)) {
        if (f.type == 3 && k->st == 2) {
            uint64_t tag = k->tag;
            if (!k->got && f.size == k->body_size) {
                k->st = 0;
                message(k, f.p, f.size);
            } else {
                if (k->got + f.size > k->body_size)
                    die(EX_CLOSED_, "%s: more body bytes than the header said", c->who);
                if (k->acc_cap < k->body_size) {
                    k->acc = realloc(k->acc, k->body_size);
                    if (!k->acc) die(EX_USAGE_, "out of memory");
                    k->acc_cap = k->body_size;
                }
                memcpy(k->acc + k->got, f.p, f.size);
                k->got += f.size;
                if (k->got < k->body_size) continue;
                k->st = 0;
                message(k, k->acc, k->body_size);
            }
            after_message(k, tag);
        } else if (f.type == 2 && k->st == 1) {
            if (f.size < 14) die(EX_CLOSED_, "%s: short header frame", c->who);
            k->body_size = g64(f.p + 4);
            k->got = 0;
            if (O.vary_props) { /* kept: the body, and with it the number, may be in a later read */
                k->nprops = f.size - 12;
                if (k->nprops > k->props_cap) {
                    k->props = realloc(k->props, k->props_cap = k->nprops + 256);
                    if (!k->props) die(EX_USAGE_, "out of memory");
                }
                memcpy(k->props, f.p + 12, k->nprops);
            }
            if (k->body_size) k->st = 2;
            else {
                uint64_t tag = k->tag;
                k->st = 0;
                message(k, f.p, 0);
                after_message(k, tag);
            }
        } else if (f.type == 1 && f.size >= 4 && g16(f.p) == 60 && g16(f.p + 2) == 60) {
            if (k->st) die(EX_CLOSED_, "%s: basic.deliver in the middle of a message", c->who);
            const uint8_t *p = f.p + 4;
            unsigned tl = p[0];
            if (f.size < 4 + 1 + tl + 9) die(EX_CLOSED_, "%s: short basic.deliver", c->who);
            k->qi = 0;
            if (O.nqueues > 1)
                for (unsigned j = 1; j <= tl; j++)
                    if (isdigit(p[j])) k->qi = k->qi * 10 + (p[j] - '0');
            if (k->qi >= O.nqueues) die(EX_CLOSED_, "%s: unknown consumer tag", c->who);
            p += 1 + tl;
            k->tag = g64(p);
            k->redel = p[8] & 1;
            if (O.nkeys) {
                const uint8_t *end = f.p + f.size;
                p += 9;
                if (p < end) p += 1 + p[0]; /* the exchange */
                if (p >= end || p + 1 + p[0] > end) die(EX_CLOSED_, "%s: short basic.deliver", c->who);
                memcpy(k->rkey, p, p[0] + 1u);
            }
            k->st = 1;
            continue;
        } else if (!common(c, &f) && f.type != 1)
            die(EX_CLOSED_, "%s: unexpected frame type %d (state %d)", c->who, f.type, k->st);
        else
            continue;
        if (O.partial && k->delivered - d0 + __atomic_load_n(&g_delivered, __ATOMIC_RELAXED) >= O.n) stop = 1;
    }
    if (k->delivered != d0) {
        if (!k->t_first) k->t_first = c->last_rx;
        k->t_last = c->last_rx;
        count_up(&g_delivered, k->delivered - d0, !strcmp(O.mode, "consume") ? "consumed" : NULL);
        __atomic_fetch_add(&g_unique, k->unique - u0, __ATOMIC_RELAXED);
    }
    if (c->out.len) flush_try(c);
    if (O.partial) return __atomic_load_n(&g_delivered, __ATOMIC_RELAXED) >= O.n;
    return __atomic_load_n(&g_unique, __ATOMIC_RELAXED) >= __atomic_load_n(&total_expected, __ATOMIC_RELAXED);
}

static void *consumer_main(void *arg)
{
    consumer *k = arg;
    conn *c = &k->c;
    size_t s;
    if (!O.no_ack || O.ncargs) {
        s = method_begin(&c->out, 1, 60, 10);
        p32(&c->out, 0);
        p16(&c->out, O.prefetch);
        p8(&c->out, 0);
        frame_end(&c->out, s);
        flush_try(c);
        await(c, 60, 11, "basic.qos");
    }
    unsigned ncls = O.priority >= 0 ? (unsigned)O.priority + 1 : 1;
    k->last = xmalloc((uint64_t)O.nqueues * (unsigned)O.producers * ncls * 8);

    int backlog = !strcmp(O.mode, "consume");
    if (backlog) pthread_barrier_wait(&barrier); /* a backlog flows as soon as we ask */
    for (long q = 0; q < O.nqueues; q++) {
        if (O.nqueues > 1 && q % O.consumers != k->id) continue;
        char name[300], tag[32];
        queue_name(name, sizeof name, q);
        snprintf(tag, sizeof tag, "c%05ld", q);
        s = method_begin(&c->out, 1, 60, 20);
        p16(&c->out, 0);
        pshort(&c->out, name);
        pshort(&c->out, tag);
        p8(&c->out, (O.no_ack ? 2u : 0u) | 8u); /* no-wait: deliveries may come before the rest */
        put_args(&c->out, O.cargs, O.ncargs);
        frame_end(&c->out, s);
    }
    flush_try(c);
    if (!backlog) {
        /* no-wait gives no answer: a qos round trip says the consumers are in place */
        s = method_begin(&c->out, 1, 60, 10);
        p32(&c->out, 0);
        p16(&c->out, O.no_ack && !O.ncargs ? 0 : O.prefetch);
        p8(&c->out, 0);
        frame_end(&c->out, s);
        flush_try(c);
        await(c, 60, 11, "basic.consume");
        pthread_barrier_wait(&barrier);
    }
    uint64_t idle_since = now_ns(), next_hb = 0;
    for (;;) {
        if (__atomic_load_n(&g_done, __ATOMIC_RELAXED)) break;
        ssize_t r = fill(c, O.consumers > 1 || O.max_time > 0 ? 50 : 500);
        uint64_t t = now_ns(), d = k->delivered;
        if ((r > 0 || __atomic_load_n(&g_producers_left, __ATOMIC_RELAXED) == 0) && consumer_input(k)) {
            __atomic_store_n(&g_done, 1, __ATOMIC_RELAXED);
            break;
        }
        if (t > next_hb) {
            heartbeat_check(c);
            next_hb = t + NS;
        }
        if (k->delivered != d || __atomic_load_n(&g_producers_left, __ATOMIC_RELAXED) > 0) idle_since = t;
        else if ((double)(t - idle_since) / 1e9 > O.idle_timeout) {
            if (O.consumers == 1) {
                fprintf(stderr, "amqpload: %s: nothing delivered for %.0f s\n", c->who, O.idle_timeout);
                __atomic_store_n(&g_stalled, 1, __ATOMIC_RELAXED);
            } else {
                static uint64_t seen;
                uint64_t g = __atomic_load_n(&g_delivered, __ATOMIC_RELAXED);
                if (__atomic_exchange_n(&seen, g, __ATOMIC_RELAXED) != g) { idle_since = t; continue; }
                __atomic_store_n(&g_stalled, 1, __ATOMIC_RELAXED);
            }
            __atomic_store_n(&g_done, 1, __ATOMIC_RELAXED);
            break;
        }
        if (O.max_time > 0 && (double)(t - g_t0) / 1e9 > O.max_time + 1 && backlog) {
            __atomic_store_n(&g_done, 1, __ATOMIC_RELAXED);
            break;
        }
    }
    if (!O.no_ack && !O.no_final_ack && k->unacked) put_ack(k, k->last_tag, 1);
    flush_try(c);
    channel_sync_close(c);
    conn_close(c);
    return NULL;
}

/* --------------------------------------------------------------------- setup */

static void simple_rpc(conn *c, size_t s, int cls, int mth, const char *what)
{
    frame_end(&c->out, s);
    flush_try(c);
    await(c, cls, mth, what);
}

static void put_queue_declare(conn *c, long i, int nowait)
{
    char name[300];
    queue_name(name, sizeof name, i);
    size_t s = method_begin(&c->out, 1, 50, 10);
    p16(&c->out, 0);
    pshort(&c->out, name);
    p8(&c->out, (unsigned)(O.passive | O.durable << 1 | O.exclusive << 2 | O.autodelete << 3 | nowait << 4));
    put_args(&c->out, O.qargs, O.nqargs);
    frame_end(&c->out, s);
}

static void delete_queues(conn *c)
{
    char name[300];
    for (long i = 0; i < O.nqueues + extra_queues(); i++) {
        if (i < O.nqueues) queue_name(name, sizeof name, i);
        else extra_queue_name(name, sizeof name, i - O.nqueues);
        size_t s = method_begin(&c->out, 1, 50, 40);
        p16(&c->out, 0);
        pshort(&c->out, name);
        p8(&c->out, 0);
        simple_rpc(c, s, 50, 41, "queue.delete");
    }
    if (*O.exchange && *O.extype) {
        size_t s = method_begin(&c->out, 1, 40, 20);
        p16(&c->out, 0);
        pshort(&c->out, O.exchange);
        p8(&c->out, 0);
        simple_rpc(c, s, 40, 21, "exchange.delete");
    }
}

/* queue.bind, up to 64 of them under way; a queue of NULL: wait for the rest */
static void bind_queue(conn *c, const char *queue, const char *key)
{
    static int waiting;
    if (queue) {
        size_t s = method_begin(&c->out, 1, 50, 20);
        p16(&c->out, 0);
        pshort(&c->out, queue);
        pshort(&c->out, O.exchange);
        pshort(&c->out, key);
        p8(&c->out, 0);
        put_args(&c->out, NULL, 0);
        frame_end(&c->out, s);
        if (++waiting < 64) return;
    }
    flush_try(c);
    for (; waiting; waiting--) await(c, 50, 21, "queue.bind");
}

/* a queue of --bindings; returns how many messages are in it */
static uint64_t declare_extra(conn *c, long i, int passive)
{
    char name[300];
    extra_queue_name(name, sizeof name, i);
    size_t s = method_begin(&c->out, 1, 50, 10);
    p16(&c->out, 0);
    pshort(&c->out, name);
    p8(&c->out, (unsigned)(passive | O.durable << 1));
    put_args(&c->out, NULL, 0);
    frame_end(&c->out, s);
    flush_try(c);
    frame f = await(c, 50, 11, "queue.declare");
    return g32(f.p + 5 + f.p[4]);
}

static void bind_all(conn *c)
{
    char name[300], pattern[2][160], extra[160];
    for (long i = 0; i < O.nqueues && !O.nkeys; i++) {
        queue_name(name, sizeof name, i);
        bind_queue(c, name, fanout ? "" : name);
    }
    for (long i = 0; i < O.nkeys; i++) {
        queue_name(name, sizeof name, i % O.nqueues);
        for (int j = key_patterns(i, pattern); j > 0; j--) bind_queue(c, name, pattern[j - 1]);
    }
    bind_queue(c, NULL, NULL);
    for (long i = 0; i < extra_queues(); i++) declare_extra(c, i, 0);
    for (long i = 0; i < O.nbindings; i++) {
        extra_queue_name(name, sizeof name, i % extra_queues());
        extra_pattern(i, extra, sizeof extra);
        bind_queue(c, name, extra);
    }
    bind_queue(c, NULL, NULL);
}

static void setup(conn *c)
{
    char name[300];
    if (O.delete_before) delete_queues(c);
    if (*O.exchange && *O.extype && !O.no_declare) {
        size_t s = method_begin(&c->out, 1, 40, 10);
        p16(&c->out, 0);
        pshort(&c->out, O.exchange);
        pshort(&c->out, O.extype);
        p8(&c->out, (unsigned)(O.passive | O.durable << 1));
        put_args(&c->out, NULL, 0);
        simple_rpc(c, s, 40, 11, "exchange.declare");
    }
    if (!O.no_declare)
        for (long i = 0; i < O.nqueues; i += O.pipeline) {
            long k = O.nqueues - i < O.pipeline ? O.nqueues - i : O.pipeline;
            for (long j = 0; j < k; j++) put_queue_declare(c, i + j, 0);
            flush_try(c);
            for (long j = 0; j < k; j++) await(c, 50, 11, "queue.declare");
        }
    if (*O.exchange && *O.extype && !O.no_declare && !O.passive)
        bind_all(c);
    if (O.purge)
        for (long i = 0; i < O.nqueues; i++) {
            queue_name(name, sizeof name, i);
            size_t s = method_begin(&c->out, 1, 50, 30);
            p16(&c->out, 0);
            pshort(&c->out, name);
            p8(&c->out, 0);
            simple_rpc(c, s, 50, 31, "queue.purge");
        }
}

static const char *HELP =
"usage: amqpload MODE [options]\n"
"modes:\n"
"  publish     publish -n messages\n"
"  consume     consume -n messages (published by an earlier run with the same -n -s -P)\n"
"  both        publish and consume at once\n"
"  latency     both, at the rate -r, from the scheduled send time to the arrival\n"
"  declare     only declare the queue(s), and time it\n"
"  count       print the number of ready messages and consumers of the queue(s)\n"
"  purge, delete\n"
"where to:\n"
"  --host H (127.0.0.1)  --port N (5672)  --vhost V (/)  --user U  --pass P (guest)\n"
"  -q NAME        queue (amqpload); with -Q N > 1: NAME.00000 ... NAME.<N-1>\n"
"  -Q N           number of queues; messages go round robin over them\n"
"  -e NAME -E T   declare exchange NAME of type T (fanout, direct, topic), bind the queues;\n"
"                 with fanout every queue must get every message\n"
"  -d             durable queue (and exchange)    --auto-delete --exclusive\n"
"  -a K=V         queue argument, any number; V may be typed: s: i: l: b: u: d:\n"
"  --passive      declare passively   --no-declare   --purge   --delete-before   --delete-after\n"
"load:\n"
"  -n N           messages in all (100000)     -s BYTES  body size, 16 or more (256)\n"
"  -D             persistent (delivery mode 2)\n"
"  -P N -C N      producers, consumers (1, 1), each a connection and a thread\n"
"  -w W           publisher confirms, at most W outstanding per producer (0: no confirms)\n"
"  -f P           prefetch (200)    -k K  acknowledge every K messages, multiple (prefetch/4)\n"
"  --no-ack       consume without acknowledgements\n"
"  --consume-arg K=V   basic.consume argument (x-stream-offset=first)\n"
"  -r R           messages/s in all (0: as fast as it goes)\n"
"  --chunk BYTES  most bytes per write (65536; 1: a write per message)\n"
"  --priority N   give message i the priority i mod (N+1)     --mandatory\n"
"  --partial      -n is just where to stop; count nothing as lost   --no-final-ack: leave all unacked\n"
"  --run-id N     u32 in every body; others are counted as foreign\n"
"  --heartbeat S (60)  --frame-max B (131072)  --idle-timeout S (30)  --max-time S\n"
"  --rcvbuf BYTES SO_RCVBUF (0: the kernel's own sizing)\n"
"  --pipeline N   queue.declare requests in flight (1)\n"
"shape (same options for the publishing and the consuming run; everything is checked):\n"
"  --vary-size    body sizes uniform from 0.5 to 1.5 times -s, never under 16\n"
"  --large BYTES  one body in --large-every N (100) has this size\n"
"  --vary-props   content_type, message_id, timestamp and a headers table of 0-4 string/int/bool\n"
"                 entries, different in each message\n"
"  --keys N       with -e NAME -E topic: N routing keys of 2-5 words, bound to the queues in turn,\n"
"                 some with * or #, some twice; needs N of -Q or more\n"
"  --bindings M   with -e NAME -E topic: M more bindings with * and # to queues NAME.x00000 ... (16\n"
"                 each, 50 queues at most); none matches, and the queues must stay empty\n"
"  --ack-each     one basic.ack per message, never multiple (what -k 1 does, too)\n"
"report:\n"
"  --server-pid PID    CPU and RSS of this process tree over the run\n"
"  --progress N        a line per N messages     --label TEXT\n"
"exit: 0 fine, 1 usage or no connection, 2 closed by the server or protocol error,\n"
"      3 lost/duplicated/reordered/corrupt messages, 4 stalled\n";

enum { L_HOST = 1000, L_PORT, L_VHOST, L_USER, L_PASS, L_PASSIVE, L_NODECL, L_PURGE, L_DELB, L_DELA,
       L_NOACK, L_CARG, L_CHUNK, L_PRIO, L_MAND, L_PARTIAL, L_NOFINAL, L_RUNID, L_HB, L_FM, L_IDLE,
       L_SPID, L_PROG, L_LABEL, L_AD, L_EXCL, L_PIPE, L_MAXT, L_RCVBUF, L_VSIZE, L_VPROPS, L_KEYS, L_BINDINGS, L_ACKEACH,
       L_LARGE, L_LARGEEVERY,
       L_HELP };

static const struct option LO[] = {
    { "host", 1, 0, L_HOST }, { "port", 1, 0, L_PORT }, { "vhost", 1, 0, L_VHOST },
    { "user", 1, 0, L_USER }, { "pass", 1, 0, L_PASS }, { "passive", 0, 0, L_PASSIVE },
    { "no-declare", 0, 0, L_NODECL }, { "purge", 0, 0, L_PURGE },
    { "delete-before", 0, 0, L_DELB }, { "delete-after", 0, 0, L_DELA },
    { "no-ack", 0, 0, L_NOACK }, { "consume-arg", 1, 0, L_CARG }, { "chunk", 1, 0, L_CHUNK },
    { "priority", 1, 0, L_PRIO }, { "mandatory", 0, 0, L_MAND }, { "partial", 0, 0, L_PARTIAL },
    { "no-final-ack", 0, 0, L_NOFINAL }, { "run-id", 1, 0, L_RUNID }, { "heartbeat", 1, 0, L_HB },
    { "frame-max", 1, 0, L_FM }, { "idle-timeout", 1, 0, L_IDLE }, { "server-pid", 1, 0, L_SPID },
    { "progress", 1, 0, L_PROG }, { "label", 1, 0, L_LABEL }, { "auto-delete", 0, 0, L_AD },
    { "exclusive", 0, 0, L_EXCL }, { "pipeline", 1, 0, L_PIPE }, { "max-time", 1, 0, L_MAXT },
    { "rcvbuf", 1, 0, L_RCVBUF }, { "vary-size", 0, 0, L_VSIZE }, { "vary-props", 0, 0, L_VPROPS },
    { "keys", 1, 0, L_KEYS }, { "bindings", 1, 0, L_BINDINGS }, { "ack-each", 0, 0, L_ACKEACH },
    { "large", 1, 0, L_LARGE }, { "large-every", 1, 0, L_LARGEEVERY },
    { "help", 0, 0, L_HELP }, { 0, 0, 0, 0 }
};

static uint64_t num(const char *s, const char *what, uint64_t lo, uint64_t hi)
{
    char *end;
    errno = 0;
    double d = strtod(s, &end); /* 1e6 is fine */
    if (!*s || *end || errno || d < (double)lo || d > (double)hi)
        die(EX_USAGE_, "%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64, what, s, lo, hi);
    return (uint64_t)d;
}

static void parse(int argc, char **argv)
{
    int o;
    while ((o = getopt_long(argc, argv, "q:Q:e:E:da:n:s:DP:C:w:f:k:r:h", LO, NULL)) != -1)
        switch (o) {
        case 'q': O.queue = optarg; break;
        case 'Q': O.nqueues = (long)num(optarg, "-Q", 1, 99999); break;
        case 'e': O.exchange = optarg; break;
        case 'E': O.extype = optarg; break;
        case 'd': O.durable = 1; break;
        case 'a':
            if (O.nqargs == MAX_ARGS) die(EX_USAGE_, "too many -a");
            O.qargs[O.nqargs++] = optarg;
            break;
        case 'n': O.n = num(optarg, "-n", 1, 1ull << 40); break;
        case 's': O.size = (uint32_t)num(optarg, "-s", 16, 1u << 29); break;
        case 'D': O.persistent = 1; break;
        case 'P': O.producers = (int)num(optarg, "-P", 1, 1000); break;
        case 'C': O.consumers = (int)num(optarg, "-C", 1, 1000); break;
        case 'w': O.window = (uint32_t)num(optarg, "-w", 0, 10000000); break;
        case 'f': O.prefetch = (uint32_t)num(optarg, "-f", 0, 65535); break;
        case 'k': O.ackevery = (uint32_t)num(optarg, "-k", 1, 65535); break;
        case 'r': O.rate = strtod(optarg, NULL); break;
        case L_HOST: O.host = optarg; break;
        case L_PORT: O.port = optarg; break;
        case L_VHOST: O.vhost = optarg; break;
        case L_USER: O.user = optarg; break;
        case L_PASS: O.pass = optarg; break;
        case L_PASSIVE: O.passive = 1; break;
        case L_NODECL: O.no_declare = 1; break;
        case L_PURGE: O.purge = 1; break;
        case L_DELB: O.delete_before = 1; break;
        case L_DELA: O.delete_after = 1; break;
        case L_NOACK: O.no_ack = 1; break;
        case L_CARG:
            if (O.ncargs == MAX_ARGS) die(EX_USAGE_, "too many --consume-arg");
            O.cargs[O.ncargs++] = optarg;
            break;
        case L_CHUNK: O.chunk = (uint32_t)num(optarg, "--chunk", 1, 1 << 26); break;
        case L_PRIO: O.priority = (int)num(optarg, "--priority", 0, 255); break;
        case L_MAND: O.mandatory = 1; break;
        case L_PARTIAL: O.partial = 1; break;
        case L_NOFINAL: O.no_final_ack = 1; break;
        case L_RUNID: O.run_id = (uint32_t)num(optarg, "--run-id", 0, UINT32_MAX); break;
        case L_HB: O.heartbeat = (int)num(optarg, "--heartbeat", 0, 65535); break;
        case L_FM: O.frame_max = (uint32_t)num(optarg, "--frame-max", 4096, 1u << 28); break;
        case L_IDLE: O.idle_timeout = strtod(optarg, NULL); break;
        case L_SPID: O.server_pid = (int)num(optarg, "--server-pid", 1, 1 << 30); break;
        case L_PROG: O.progress = num(optarg, "--progress", 0, 1ull << 40); break;
        case L_LABEL: O.label = optarg; break;
        case L_AD: O.autodelete = 1; break;
        case L_EXCL: O.exclusive = 1; break;
        case L_PIPE: O.pipeline = (int)num(optarg, "--pipeline", 1, 100000); break;
        case L_RCVBUF: O.rcvbuf = (int)num(optarg, "--rcvbuf", 0, 1 << 30); break;
        case L_VSIZE: O.vary_size = 1; break;
        case L_VPROPS: O.vary_props = 1; break;
        case L_KEYS: O.nkeys = (long)num(optarg, "--keys", 1, 1000000); break;
        case L_BINDINGS: O.nbindings = (long)num(optarg, "--bindings", 1, 1000000); break;
        case L_ACKEACH: O.ack_each = 1; break;
        case L_LARGE: O.large_size = (uint32_t)num(optarg, "--large", 24, 1u << 29); break;
        case L_LARGEEVERY: O.large_every = (uint32_t)num(optarg, "--large-every", 1, 1u << 30); break;
        case L_MAXT: O.max_time = strtod(optarg, NULL); break;
        case 'h': case L_HELP: fputs(HELP, stdout); exit(0);
        default: fputs("see amqpload --help\n", stderr); exit(EX_USAGE_);
        }
    if (optind != argc - 1) {
        fputs(HELP, stderr);
        exit(EX_USAGE_);
    }
    O.mode = argv[optind];
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    int pub = !strcmp(O.mode, "publish"), con = !strcmp(O.mode, "consume");
    if (!strcmp(O.mode, "both") || !strcmp(O.mode, "latency")) pub = con = 1;
    int declare = !strcmp(O.mode, "declare"), count = !strcmp(O.mode, "count");
    int purge = !strcmp(O.mode, "purge"), del = !strcmp(O.mode, "delete");
    if (!pub && !con && !declare && !count && !purge && !del)
        die(EX_USAGE_, "unknown mode \"%s\" (see --help)", O.mode);
    size_lo = O.vary_size ? O.size / 2 : O.size;
    size_hi = O.vary_size ? O.size + O.size / 2 : O.size;
    if (size_lo < 16) size_lo = 16;
    size_small = size_hi;
    if (O.large_size > size_hi) size_hi = O.large_size;
    varied = O.vary_size || O.vary_props || O.nkeys || O.large_size;
    if (!strcmp(O.mode, "latency")) {
        if (O.rate <= 0) die(EX_USAGE_, "latency mode needs a rate: -r");
        if (size_lo < 24) die(EX_USAGE_, "latency mode needs bodies of 24 bytes or more%s",
                              O.vary_size ? ": -s of 48 or more" : "");
    }
    if ((O.nkeys || O.nbindings) && (!*O.exchange || strcmp(O.extype, "topic")))
        die(EX_USAGE_, "--keys and --bindings need -e NAME -E topic");
    if (O.nkeys && O.nkeys < O.nqueues) die(EX_USAGE_, "--keys %ld: fewer keys than queues (%ld)", O.nkeys, O.nqueues);
    if (O.ack_each) {
        if (O.no_ack || O.no_final_ack) die(EX_USAGE_, "--ack-each with --no-ack or --no-final-ack");
        if (O.ackevery > 1) die(EX_USAGE_, "--ack-each with -k %u", O.ackevery);
        O.ackevery = 1;
    }
    if (!O.ackevery) O.ackevery = O.prefetch >= 4 ? O.prefetch / 4 : 1;
    if (O.prefetch && O.ackevery > O.prefetch)
        die(EX_USAGE_, "-k %u is over the prefetch %u: it would stall", O.ackevery, O.prefetch);
    if (O.nqueues > 1 && O.consumers > O.nqueues && con)
        die(EX_USAGE_, "more consumers than queues: use -Q 1, or -C of at most %ld", O.nqueues);
    if (pub && O.mandatory && !O.window) fprintf(stderr, "amqpload: note: --mandatory without confirms\n");
    fanout = !strcmp(O.extype, "fanout");
    nsets = fanout ? (int)O.nqueues : 1;
    shapes_init();
    if (O.nkeys) keys_init();

    /* filler: the same bytes in every process, of no use to a compressor */
    fill_mod = size_hi <= 65536 ? 64 : 1;
    size_t plen = (size_t)fill_mod * FILL_STEP + size_hi + 8;
    pool = xmalloc(plen);
    uint64_t x = 0x9e3779b97f4a7c15ull;
    for (size_t i = 0; i < plen; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        pool[i] = (uint8_t)(x >> 32);
    }

    conn ctl;
    conn_open(&ctl, "control");
    if (count) {
        O.passive = 1;
        uint64_t sum = 0, cons = 0;
        for (long i = 0; i < O.nqueues; i++) {
            put_queue_declare(&ctl, i, 0);
            flush_try(&ctl);
            frame f = await(&ctl, 50, 11, "queue.declare");
            const uint8_t *p = f.p + 4;
            sum += g32(p + 1 + p[0]);
            cons += g32(p + 5 + p[0]);
        }
        printf("{\"mode\":\"count\",\"queues\":%ld,\"ready\":%" PRIu64 ",\"consumers\":%" PRIu64 "}\n", O.nqueues, sum, cons);
        conn_close(&ctl);
        return 0;
    }
    double cpu0 = 0, cpu1 = 0, my0 = self_cpu();
    uint64_t rss0 = 0, rss1 = 0, rssmax = 0;
    if (O.server_pid && tree_usage(O.server_pid, &cpu0, &rss0))
        die(EX_USAGE_, "no process %d", O.server_pid);
    uint64_t t0 = now_ns();
    if (del || purge) {
        if (purge) { O.purge = 1; O.no_declare = 1; setup(&ctl); }
        else delete_queues(&ctl);
        printf("{\"mode\":\"%s\",\"queues\":%ld,\"seconds\":%.6f}\n", O.mode, O.nqueues, (double)(now_ns() - t0) / 1e9);
        conn_close(&ctl);
        return 0;
    }
    setup(&ctl);
    double setup_s = (double)(now_ns() - t0) / 1e9;
    if (declare) {
        if (O.server_pid) tree_usage(O.server_pid, &cpu1, &rss1);
        printf("{\"mode\":\"declare\",\"label\":");
        json_str(stdout, O.label);
        printf(",\"queues\":%ld,\"seconds\":%.6f,\"queues_s\":%.0f,\"client_cpu_s\":%.3f", O.nqueues, setup_s,
               (double)O.nqueues / setup_s, self_cpu() - my0);
        if (O.server_pid)
            printf(",\"server_cpu_s\":%.4f,\"server_rss_before\":%" PRIu64 ",\"server_rss_after\":%" PRIu64, cpu1 - cpu0, rss0, rss1);
        printf("}\n");
        conn_close(&ctl);
        return 0;
    }
    int keep_ctl = O.delete_after || O.nbindings;
    if (!keep_ctl) conn_close(&ctl);

    int np = pub ? O.producers : 0, nc = con ? O.consumers : 0;
    quota = xmalloc((size_t)O.producers * 8);
    for (int i = 0; i < O.producers; i++)
        quota[i] = O.n / (uint64_t)O.producers + ((uint64_t)i < O.n % (uint64_t)O.producers);
    bm_words = quota[0] / 64 + 1;
    if (con) bitmap = xmalloc((uint64_t)nsets * (unsigned)O.producers * bm_words * 8);
    total_expected = O.n * (uint64_t)nsets;

    producer *ps = xmalloc((size_t)O.producers * sizeof *ps);
    consumer *cs = xmalloc((size_t)O.consumers * sizeof *cs);
    pthread_barrier_init(&barrier, NULL, (unsigned)(np + nc + 1));
    g_producers_left = np;
    char who[32];
    for (int i = 0; i < nc; i++) {
        cs[i].id = i;
        snprintf(who, sizeof who, "consumer %d", i);
        conn_open(&cs[i].c, who);
        if (pthread_create(&cs[i].th, NULL, consumer_main, &cs[i])) die(EX_USAGE_, "pthread_create");
    }
    for (int i = 0; i < np; i++) {
        ps[i].id = i;
        ps[i].n = quota[i];
        snprintf(who, sizeof who, "producer %d", i);
        conn_open(&ps[i].c, who);
        if (pthread_create(&ps[i].th, NULL, producer_main, &ps[i])) die(EX_USAGE_, "pthread_create");
    }
    /* producers and consumers do their set-up, then all wait here */
    usleep(20000);
    if (O.server_pid) tree_usage(O.server_pid, &cpu0, &rss0);
    rssmax = rss0;
    g_cpu0 = cpu0;
    double busy0, steal0, busy1, steal1;
    machine_cpu(&busy0, &steal0);
    my0 = self_cpu();
    g_t0 = now_ns();
    pthread_barrier_wait(&barrier);

    /* this thread only watches the server's memory */
    for (int i = 0; i < np + nc; i++) {
        pthread_t th = i < np ? ps[i].th : cs[i - np].th;
        for (;;) {
            struct timespec ts;
            clock_gettime(CLOCK_REALTIME, &ts);
            uint64_t a = (uint64_t)ts.tv_nsec + (uint64_t)(O.rss_interval * 1e9);
            ts.tv_sec += (time_t)(a / NS);
            ts.tv_nsec = (long)(a % NS);
            int r = pthread_timedjoin_np(th, NULL, &ts);
            if (r == 0) break;
            if (O.server_pid) {
                procinfo pi; /* the root alone here: cheap */
                double cc;
                uint64_t rr;
                static int tick;
                if (tick++ % 5 == 0) {
                    if (tree_usage(O.server_pid, &cc, &rr) == 0 && rr > rssmax) rssmax = rr;
                } else if (read_stat(O.server_pid, &pi) == 0 && pi.rss > rssmax) rssmax = pi.rss;
            }
        }
    }
    uint64_t t_join = now_ns();
    double my1 = self_cpu();
    machine_cpu(&busy1, &steal1);
    if (O.server_pid) {
        tree_usage(O.server_pid, &cpu1, &rss1);
        if (rss1 > rssmax) rssmax = rss1;
    }
    uint64_t stray = 0;
    for (long i = 0; i < extra_queues(); i++) stray += declare_extra(&ctl, i, 1);
    if (O.delete_after) delete_queues(&ctl);
    if (keep_ctl) conn_close(&ctl);

    uint64_t pbytes = 0, cbytes = 0, misrouted = 0, bad_props = 0;
    uint64_t sent = 0, acked = 0, nacked = 0, returned = 0, bad = 0, pend = 0;
    static hist lat, clat;
    for (int i = 0; i < np; i++) {
        sent += ps[i].sent;
        pbytes += ps[i].bytes;
        acked += ps[i].acked;
        nacked += ps[i].nacked;
        returned += ps[i].returned;
        bad += ps[i].bad;
        if (ps[i].t_end > pend) pend = ps[i].t_end;
        hmerge(&clat, &ps[i].clat);
    }
    uint64_t deliv = 0, uniq = 0, dup = 0, redel = 0, rdup = 0, reord = 0, corr = 0, foreign = 0, cfirst = 0, cend = 0;
    for (int i = 0; i < nc; i++) {
        deliv += cs[i].delivered;
        uniq += cs[i].unique;
        dup += cs[i].dup;
        redel += cs[i].redelivered;
        rdup += cs[i].redel_dup;
        reord += cs[i].reordered;
        corr += cs[i].corrupt;
        foreign += cs[i].foreign;
        misrouted += cs[i].misrouted;
        bad_props += cs[i].bad_props;
        cbytes += cs[i].bytes;
        if (cs[i].t_first && (!cfirst || cs[i].t_first < cfirst)) cfirst = cs[i].t_first;
        if (cs[i].t_last > cend) cend = cs[i].t_last;
        hmerge(&lat, &cs[i].lat);
    }
    uint64_t lost = con && !O.partial ? (pub ? sent * (uint64_t)nsets - nacked * (uint64_t)nsets : total_expected) : 0;
    lost = lost > uniq ? lost - uniq : 0;
    uint64_t end = con && cend ? cend : pend;
    if (pub && pend > end) end = pend;
    if (!end) end = t_join;
    double secs = (double)(end - g_t0) / 1e9;
    uint64_t msgs = con ? deliv : sent, bytes_moved = con ? cbytes : pbytes;
    FILE *f = stdout;
    fprintf(f, "{\"mode\":\"%s\",\"label\":", O.mode);
    json_str(f, O.label);
    fprintf(f, ",\"size\":%u,\"msgs\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"seconds\":%.3f,\"msgs_s\":%.0f,\"mb_s\":%.1f",
            O.size, msgs, bytes_moved, secs, (double)msgs / secs, (double)bytes_moved / secs / 1e6);
    if (O.vary_size) fprintf(f, ",\"vary_size\":true");
    if (O.large_size) fprintf(f, ",\"large\":%u,\"large_every\":%u", O.large_size, O.large_every);
    if (O.vary_props) fprintf(f, ",\"vary_props\":true");
    if (O.nkeys) fprintf(f, ",\"keys\":%ld", O.nkeys);
    if (O.nbindings) fprintf(f, ",\"bindings\":%ld,\"stray\":%" PRIu64, O.nbindings, stray);
    if (con && !O.no_ack && O.ackevery == 1) fprintf(f, ",\"ack_each\":true");
    if (pub) {
        double s = (double)(pend - g_t0) / 1e9;
        fprintf(f, ",\"published\":%" PRIu64 ",\"pub_s\":%.3f,\"pub_rate\":%.0f", sent, s, (double)sent / s);
        if (O.window)
            fprintf(f, ",\"confirmed\":%" PRIu64 ",\"nacked\":%" PRIu64 ",\"bad_confirms\":%" PRIu64, acked, nacked, bad);
        if (O.mandatory) fprintf(f, ",\"returned\":%" PRIu64, returned);
        fprintf(f, ",\"blocked_s\":%.2f", (double)g_blocked_ns / 1e9);
    }
    if (con)
        fprintf(f, ",\"delivered\":%" PRIu64 ",\"first_s\":%.4f,\"con_rate\":%.0f,\"unique\":%" PRIu64 ",\"lost\":%" PRIu64
                   ",\"duplicated\":%" PRIu64 ",\"redelivered\":%" PRIu64 ",\"redelivered_dup\":%" PRIu64
                   ",\"reordered\":%" PRIu64 ",\"corrupt\":%" PRIu64 ",\"foreign\":%" PRIu64,
                deliv, cfirst ? (double)(cfirst - g_t0) / 1e9 : -1.0,
                cend > cfirst ? (double)deliv * 1e9 / (double)(cend - cfirst) : 0.0, uniq, lost, dup, redel, rdup,
                reord, corr, foreign);
    if (con && ((O.nqueues > 1 && !fanout) || O.nkeys)) fprintf(f, ",\"misrouted\":%" PRIu64, misrouted);
    if (con && O.vary_props) fprintf(f, ",\"bad_props\":%" PRIu64, bad_props);
    fprintf(f, ",\"client_cpu_s\":%.3f,\"client_us_per_msg\":%.2f", my1 - my0, (my1 - my0) * 1e6 / (double)(msgs ? msgs : 1));
    if (O.server_pid)
        fprintf(f, ",\"server_cpu_s\":%.4f,\"server_us_per_msg\":%.2f,\"server_rss_before\":%" PRIu64
                   ",\"server_rss_after\":%" PRIu64 ",\"server_rss_max\":%" PRIu64,
                cpu1 - cpu0, (cpu1 - cpu0) * 1e6 / (double)(msgs ? msgs : 1), rss0, rss1, rssmax);
    if (O.server_pid) { /* how noisy the machine was: CPUs kept busy by neither side */
        double wall = (double)(t_join - g_t0) / 1e9, other = busy1 - busy0 - (cpu1 - cpu0) - (my1 - my0);
        fprintf(f, ",\"server_cpus\":%.2f,\"other_cpus\":%.2f,\"stolen_cpus\":%.2f", (cpu1 - cpu0) / wall,
                (other > 0 ? other : 0) / wall, (steal1 - steal0) / wall);
    }
    hprint(f, "latency_us", &lat);
    hprint(f, "confirm_us", &clat);
    int rc = EX_OK_;
    if (lost || dup || reord || corr || bad || misrouted || bad_props || stray || (foreign && !O.partial)) rc = EX_INTEGRITY_;
    if (g_stalled) rc = EX_STALLED_;
    fprintf(f, ",\"ok\":%s}\n", rc ? "false" : "true");
    if (rc == EX_INTEGRITY_)
        fprintf(stderr, "amqpload: INTEGRITY: lost %" PRIu64 ", duplicated %" PRIu64 ", reordered %" PRIu64
                        ", corrupt %" PRIu64 ", foreign %" PRIu64 ", bad confirms %" PRIu64 ", misrouted %" PRIu64
                        ", bad properties %" PRIu64 ", stray %" PRIu64 "\n",
                lost, dup, reord, corr, foreign, bad, misrouted, bad_props, stray);
    return rc;
}
