/*
 * Clients and a receiving server for benchmarks/map.py, which builds this with cc: one thread for each session, blocking, no allocation
 * for each message, so that neither is what limits a relay. Debian's smtp-source and smtp-sink know neither STARTTLS nor a fixed rate nor
 * a mix of sizes.
 *
 *   load client key=value …   sends; prints "sent SECONDS P50_MS P99_MS": the wait from the final dot to the 250
 *   load plan key=value …     prints what such clients will send: "hop0 hop1 hop2 deferred", messages
 *   load sink key=value …     receives; exits when it has taken `messages`
 *
 * client: ports=P,P sessions=N messages=M size=OCTETS recipients=N kept=0|1 tls=0|1 rate=N (a second; 0: as fast as replies come) mix=0|1
 * sink: port=P messages=M delay_ms=N certificate=FILE key=FILE
 *
 * A mix: sizes log-normal, median 20 KiB, mean 75 KiB; 60 % one message a session with STARTTLS, the rest over kept sessions without;
 * 1.3 recipients; 3 % to a recipient that is always deferred; 5 % to each of the slow next hops hop1.example and hop2.example.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 80, PORTS_MAX = 8, SIZE_MAX_OCTETS = 64 << 20 };

typedef struct {
    int fd;
    SSL *tls;
    char buffer[65536];
    size_t begin, end;
} Session;

typedef struct {
    size_t size;
    int recipients, hop, is_single, is_deferred;
} Message;

static int ports[PORTS_MAX], ports_count, port, sessions = 1, kept = 1, use_tls, is_mix, recipients = 1, delay_ms;
static long messages = 1;
static size_t size = 4096;
static double rate;
static const char *certificate = "", *key = "";
static SSL_CTX *context;
static char *body;
static double *waits;
static double began;
static atomic_long next_message, taken;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void pause_for(double seconds) {
    if (seconds <= 0) return;
    struct timespec span = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&span, NULL);
}

/* The same numbers for the same message in every run: splitmix64. */
static double chance(long number, int which) {
    uint64_t z = (uint64_t)number * 8 + (uint64_t)which + 1;
    z *= 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) / 9007199254740992.0;
}

static Message message_of(long number) {
    Message one = {size, recipients, 0, !kept, 0};
    if (!is_mix) return one;
    double normal = sqrt(-2 * log(chance(number, 0))) * cos(6.283185307179586 * chance(number, 1));
    double octets = 20480 * exp(1.626 * normal);
    one.size = octets < 500 ? 500 : octets > (8 << 20) ? (8 << 20) : (size_t)octets;
    one.is_single = chance(number, 2) < 0.6;
    one.recipients = chance(number, 3) < 0.3 ? 2 : 1;
    double where = chance(number, 4);
    one.is_deferred = where < 0.03;
    one.hop = where < 0.03 ? 0 : where < 0.08 ? 1 : where < 0.13 ? 2 : 0;
    return one;
}

/* Octets of a session, both sides */

static int put(Session *one, const char *octets, size_t count) {
    while (count) {
        int some = (int)(count > 1 << 20 ? 1 << 20 : count);
        ssize_t done = one->tls ? SSL_write(one->tls, octets, some) : send(one->fd, octets, count, MSG_NOSIGNAL);
        if (done <= 0) return -1;
        octets += done, count -= (size_t)done;
    }
    return 0;
}

static int fill(Session *one) {
    if (one->begin == one->end) one->begin = one->end = 0;
    if (one->end == sizeof one->buffer) {
        memmove(one->buffer, one->buffer + one->begin, one->end - one->begin);
        one->end -= one->begin, one->begin = 0;
    }
    size_t room = sizeof one->buffer - one->end;
    ssize_t done = one->tls ? SSL_read(one->tls, one->buffer + one->end, (int)room) : recv(one->fd, one->buffer + one->end, room, 0);
    if (done <= 0) return -1;
    one->end += (size_t)done;
    return 0;
}

/* The next line, without CRLF; NULL at the end. */
static char *line_of(Session *one) {
    for (;;) {
        char *start = one->buffer + one->begin, *end = memchr(start, '\n', one->end - one->begin);
        if (end) {
            one->begin = (size_t)(end - one->buffer) + 1;
            *end = 0;
            if (end > start && end[-1] == '\r') end[-1] = 0;
            return start;
        }
        if (one->end - one->begin == sizeof one->buffer || fill(one)) return NULL;
    }
}

static void shut(Session *one) {
    if (one->tls) SSL_shutdown(one->tls), SSL_free(one->tls);
    if (one->fd >= 0) close(one->fd);
    one->tls = NULL, one->fd = -1, one->begin = one->end = 0;
}

/* Clients */

static void expect(Session *one, const char *code) {
    char *line;
    do {
        if (!(line = line_of(one))) fail("the session was lost");
    } while (strlen(line) > 3 && line[3] == '-');
    if (strncmp(line, code, 3)) {
        fprintf(stderr, "load: %s expected, got %s\n", code, line);
        _exit(1);
    }
}

static void say(Session *one, const char *line, const char *code) {
    if (put(one, line, strlen(line))) fail("write");
    expect(one, code);
}

static void start(Session *one, int to, int with_tls) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)to), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    one->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (one->fd < 0 || connect(one->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    expect(one, "220");
    say(one, "EHLO client.example\r\n", "250");
    if (with_tls) {
        say(one, "STARTTLS\r\n", "220");
        one->tls = SSL_new(context);
        SSL_set_fd(one->tls, one->fd);
        if (SSL_connect(one->tls) != 1) fail("TLS handshake");
        say(one, "EHLO client.example\r\n", "250");
    }
}

static void submit(Session *one, long number, const Message *message) {
    char text[512];
    say(one, "MAIL FROM:<sender@client.example>\r\n", "250");
    for (int place = 0; place < message->recipients; place++) {
        const char *name = message->is_deferred ? "deferred" : "user";
        snprintf(text, sizeof text, "RCPT TO:<%s%d@hop%d.example>\r\n", name, place, message->hop);
        say(one, text, "250");
    }
    say(one, "DATA\r\n", "354");
    char date[64];
    time_t at = time(NULL);
    struct tm parts;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S +0000", gmtime_r(&at, &parts));
    int head = snprintf(
        text, sizeof text,
        "From: <sender@client.example>\r\nTo: <user@corp.example>\r\nDate: %s\r\nMessage-Id: <%ld.%d@client.example>\r\n"
        "Subject: message %ld\r\n\r\n", date, number, (int)getpid(), number);
    size_t left = message->size > (size_t)head ? (message->size - (size_t)head) / LINE * LINE : 0;
    if (put(one, text, (size_t)head) || put(one, body, left) || put(one, ".\r\n", 3)) fail("write");
    double dot = now();
    expect(one, "250");
    waits[number] = now() - dot;
}

static void *client(void *argument) {
    long place = (long)(intptr_t)argument, number;
    Session *stays = calloc(2, sizeof *stays), *single = stays + 1;
    stays->fd = single->fd = -1;
    int to = ports[place % ports_count];
    while ((number = atomic_fetch_add(&next_message, 1)) < messages) {
        Message message = message_of(number);
        if (rate > 0) pause_for(began + (double)number / rate - now());
        Session *one = message.is_single ? single : stays;
        if (one->fd < 0) start(one, to, use_tls || (is_mix && message.is_single));
        submit(one, number, &message);
        if (message.is_single) say(one, "QUIT\r\n", "221"), shut(one);
    }
    shut(stays);
    return NULL;
}

static int by_size(const void *one, const void *other) {
    double left = *(const double *)one, right = *(const double *)other;
    return left < right ? -1 : left > right;
}

static void run_clients(void) {
    size_t octets = is_mix ? 8 << 20 : size;
    body = malloc(octets + LINE);
    for (size_t at = 0; at < octets + LINE; at++) body[at] = at % LINE == LINE - 2 ? '\r' : at % LINE == LINE - 1 ? '\n' : 'X';
    waits = calloc((size_t)messages, sizeof *waits);
    context = SSL_CTX_new(TLS_client_method());
    pthread_t *threads = calloc((size_t)sessions, sizeof *threads);
    began = now();
    for (long place = 0; place < sessions; place++)
        if (pthread_create(&threads[place], NULL, client, (void *)(intptr_t)place)) fail("thread");
    for (long place = 0; place < sessions; place++) pthread_join(threads[place], NULL);
    double seconds = now() - began;
    qsort(waits, (size_t)messages, sizeof *waits, by_size);
    long middle = (messages + 1) / 2 - 1, late = (long)ceil(0.99 * (double)messages) - 1;
    printf("sent %.6f %.3f %.3f\n", seconds, 1000 * waits[middle], 1000 * waits[late]);
}

static void plan(void) {
    long counts[4] = {0};
    for (long number = 0; number < messages; number++) {
        Message message = message_of(number);
        counts[message.is_deferred ? 3 : message.hop]++;
    }
    printf("%ld %ld %ld %ld\n", counts[0], counts[1], counts[2], counts[3]);
}

/* The receiving server */

/* Read up to the line with the final dot. Four octets are kept where an end may have begun. */
static int take_content(Session *one) {
    int is_first = 1;
    for (;;) {
        char *at = one->buffer + one->begin, *found;
        size_t count = one->end - one->begin;
        if (is_first && count >= 3) {
            is_first = 0;
            if (!memcmp(at, ".\r\n", 3)) {
                one->begin += 3;
                return 0;
            }
        }
        if ((found = memmem(at, count, "\r\n.\r\n", 5))) {
            one->begin = (size_t)(found - one->buffer) + 5;
            return 0;
        }
        if (!is_first && count > 4) one->begin = one->end - 4;
        if (fill(one)) return -1;
    }
}

static void *serve(void *argument) {
    Session *one = argument;
    char *line;
    int accepted = 0;
    put(one, "220 sink.example ESMTP\r\n", 24);
    while ((line = line_of(one))) {
        const char *reply = "250 2.0.0 OK\r\n";
        if (!strncasecmp(line, "EHLO", 4)) {
            reply = context && !one->tls ? "250-sink.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 STARTTLS\r\n"
                                         : "250-sink.example\r\n250-PIPELINING\r\n250 8BITMIME\r\n";
            accepted = 0;
        } else if (!strncasecmp(line, "STARTTLS", 8) && context && !one->tls) {
            put(one, "220 2.0.0 go ahead\r\n", 20);
            SSL *tls = SSL_new(context);
            SSL_set_fd(tls, one->fd);
            one->begin = one->end = 0;
            one->tls = tls;
            if (SSL_accept(tls) != 1) break;
            continue;
        } else if (!strncasecmp(line, "RCPT", 4)) {
            if (strstr(line, "<deferred")) reply = "451 4.2.0 not now\r\n";
            else accepted++;
        } else if (!strncasecmp(line, "DATA", 4)) {
            if (!accepted) {
                reply = "554 5.5.1 no valid recipients\r\n";
            } else {
                put(one, "354 go ahead\r\n", 14);
                if (take_content(one)) break;
                pause_for(delay_ms / 1000.0);
                accepted = 0;
                put(one, reply, strlen(reply));
                if (atomic_fetch_add(&taken, 1) + 1 >= messages) _exit(0);
                continue;
            }
        } else if (!strncasecmp(line, "QUIT", 4)) {
            put(one, "221 2.0.0 bye\r\n", 15);
            break;
        } else if (!strncasecmp(line, "RSET", 4)) {
            accepted = 0;
        }
        if (put(one, reply, strlen(reply))) break;
    }
    shut(one);
    free(one);
    return NULL;
}

static void run_sink(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 1024)) fail("listen");
    if (*certificate) {
        context = SSL_CTX_new(TLS_server_method());
        if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1 || SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
            fail("certificate");
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    for (;;) {
        Session *one = calloc(1, sizeof *one);
        pthread_t thread;
        one->fd = accept(listening, NULL, NULL);
        if (one->fd < 0) fail("accept");
        setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (pthread_create(&thread, &small, serve, one)) fail("thread");
    }
}

static void set(char *word) {
    char *value = strchr(word, '=');
    if (!value) fail(word);
    *value++ = 0;
    if (!strcmp(word, "ports"))
        for (char *one = strtok(value, ","); one && ports_count < PORTS_MAX; one = strtok(NULL, ",")) ports[ports_count++] = atoi(one);
    else if (!strcmp(word, "port")) port = atoi(value);
    else if (!strcmp(word, "sessions")) sessions = atoi(value);
    else if (!strcmp(word, "messages")) messages = atol(value);
    else if (!strcmp(word, "size")) size = strtoul(value, NULL, 10);
    else if (!strcmp(word, "recipients")) recipients = atoi(value);
    else if (!strcmp(word, "kept")) kept = atoi(value);
    else if (!strcmp(word, "tls")) use_tls = atoi(value);
    else if (!strcmp(word, "mix")) is_mix = atoi(value);
    else if (!strcmp(word, "rate")) rate = atof(value);
    else if (!strcmp(word, "delay_ms")) delay_ms = atoi(value);
    else if (!strcmp(word, "certificate")) certificate = value;
    else if (!strcmp(word, "key")) key = value;
    else fail(word);
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    for (int at = 2; at < count; at++) set(words[at]);
    if (count > 1 && size <= SIZE_MAX_OCTETS && !strcmp(words[1], "client") && ports_count) return run_clients(), 0;
    if (count > 1 && !strcmp(words[1], "plan")) return plan(), 0;
    if (count > 1 && !strcmp(words[1], "sink")) return run_sink(), 0;
    errno = EINVAL;
    fail("client, plan or sink");
}
