/* Counts what Python's allocators are asked for between start() and stop(): blocks, and bytes as requested.
 *
 * The domains of objects and of their memory (lists, dictionaries). What is served from a free list of Python's own
 * (floats, small tuples) asks no allocator and is not counted. The raw domain is left alone: the allocator of objects
 * hands large requests on to it, and they would count twice. All of this runs under the GIL. */

#include <stddef.h>

typedef struct {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator; /* PyMemAllocatorEx */

extern void PyMem_GetAllocator(int domain, Allocator *allocator);
extern void PyMem_SetAllocator(int domain, Allocator *allocator);

enum { FIRST_DOMAIN = 1, DOMAINS = 2 }; /* PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ */

static Allocator real[DOMAINS];
static unsigned long long blocks, bytes;

static void count(size_t size) {
    blocks++;
    bytes += size;
}

static void *counting_malloc(void *context, size_t size) {
    Allocator *to = context;
    count(size);
    return to->malloc(to->context, size);
}

static void *counting_calloc(void *context, size_t number, size_t size) {
    Allocator *to = context;
    count(number * size);
    return to->calloc(to->context, number, size);
}

static void *counting_realloc(void *context, void *block, size_t size) {
    Allocator *to = context;
    count(size);
    return to->realloc(to->context, block, size);
}

static void counting_free(void *context, void *block) {
    Allocator *to = context;
    to->free(to->context, block);
}

void start(void) {
    for (int i = 0; i < DOMAINS; i++) {
        Allocator ours = {&real[i], counting_malloc, counting_calloc, counting_realloc, counting_free};
        PyMem_GetAllocator(FIRST_DOMAIN + i, &real[i]);
        PyMem_SetAllocator(FIRST_DOMAIN + i, &ours);
    }
    blocks = bytes = 0;
}

void stop(void) {
    for (int i = 0; i < DOMAINS; i++) {
        PyMem_SetAllocator(FIRST_DOMAIN + i, &real[i]);
    }
}

unsigned long long counted_blocks(void) { return blocks; }
unsigned long long counted_bytes(void) { return bytes; }
