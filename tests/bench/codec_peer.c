/*
 * The reference libraries at the work of crates/codec, for codec_bench beside it: LZ4 (liblz4), zstd level 3 (libzstd) and
 * OpenZFS's fletcher4 (libzpool: the fastest of its implementations on this processor, as it chooses it).
 *
 *   codec_peer lz4|lz4-read|zstd-3|zstd-3-read|fletcher4 FILE BLOCK_BYTES MILLISECONDS
 *
 * prints GB/s of data (not of what it is compressed to) and the sum of the compressed lengths of one pass; on one core, one
 * context for all blocks. The libraries are declared here, so that Debian's runtime packages are enough:
 *   cc -O2 -o codec_peer codec_peer.c -l:liblz4.so.1 -l:libzstd.so.1 -l:libzpool.so.6
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern int LZ4_compress_fast_extState(void *, const char *, char *, int, int, int);
extern int LZ4_decompress_safe(const char *, char *, int, int);
extern int LZ4_sizeofState(void);
extern void *ZSTD_createCCtx(void);
extern void *ZSTD_createDCtx(void);
extern size_t ZSTD_compressCCtx(void *, void *, size_t, const void *, size_t, int);
extern size_t ZSTD_decompressDCtx(void *, void *, size_t, const void *, size_t);
extern unsigned ZSTD_isError(size_t);
typedef struct { uint64_t word[4]; } sum_t;
extern void kernel_init(int);
extern void fletcher_4_native(const void *, uint64_t, const void *, sum_t *);

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }

static void *state, *cctx, *dctx;

static size_t lz4(const char *from, size_t n, char *to, size_t room) { return LZ4_compress_fast_extState(state, from, to, n, room, 1); }
static size_t unlz4(const char *from, size_t n, char *to, size_t room) { return LZ4_decompress_safe(from, to, n, room); }
static size_t zstd(const char *from, size_t n, char *to, size_t room) { return ZSTD_compressCCtx(cctx, to, room, from, n, 3); }
static size_t unzstd(const char *from, size_t n, char *to, size_t room) { return ZSTD_decompressDCtx(dctx, to, room, from, n); }
static size_t fletcher4(const char *from, size_t n, char *to, size_t room) {
	(void) room; sum_t sum; fletcher_4_native(from, n, NULL, &sum); memcpy(to, &sum, sizeof sum); return sizeof sum;
}

int main(int argc, char **argv) {
	if (argc != 5) { fprintf(stderr, "usage: see the source\n"); return 2; }
	size_t block = strtoul(argv[3], NULL, 10), room = block + block / 8 + 1024; double seconds = atof(argv[4]) / 1e3;
	FILE *f = fopen(argv[2], "rb"); if (!f) { perror(argv[2]); return 1; }
	fseek(f, 0, SEEK_END); size_t blocks = ftell(f) / block; rewind(f);
	char *data = malloc(blocks * block), *out = malloc(room), *packed = malloc(blocks * room); size_t *length = calloc(blocks, sizeof *length);
	if (!blocks || fread(data, block, blocks, f) != blocks) { fprintf(stderr, "%s: no whole block\n", argv[2]); return 1; }
	state = malloc(LZ4_sizeofState()); cctx = ZSTD_createCCtx(); dctx = ZSTD_createDCtx();
	size_t (*work)(const char *, size_t, char *, size_t) = NULL, (*pack)(const char *, size_t, char *, size_t) = NULL;
	if (!strcmp(argv[1], "lz4")) work = lz4;
	if (!strcmp(argv[1], "zstd-3")) work = zstd;
	if (!strcmp(argv[1], "lz4-read")) { pack = lz4; work = unlz4; }
	if (!strcmp(argv[1], "zstd-3-read")) { pack = zstd; work = unzstd; }
	if (!strcmp(argv[1], "fletcher4")) { kernel_init(1); work = fletcher4; }
	if (!work) { fprintf(stderr, "codec_peer: no such operation: %s\n", argv[1]); return 2; }
	size_t sum = 0;
	for (size_t i = 0; i < blocks; i++) {
		if (pack) length[i] = pack(data + i * block, block, packed + i * room, room);
		size_t n = pack ? work(packed + i * room, length[i], out, room) : work(data + i * block, block, out, room);
		if (n == 0 || n > room || (pack && (n != block || memcmp(out, data + i * block, block)))) { fprintf(stderr, "codec_peer: block %zu: wrong\n", i); return 1; }
		sum += pack ? length[i] : n;
	}
	double began = now(), spent; size_t done = 0;
	do {
		size_t i = done++ % blocks;
		if (pack) work(packed + i * room, length[i], out, room); else work(data + i * block, block, out, room);
	} while ((spent = now() - began) < seconds);
	printf("%.4f %zu\n", done * (double) block / spent / 1e9, sum);
	exit(0);
}
