/*
 * openzfs_bench: engine-level measurements of OpenZFS in userland (libzpool),
 * on file vdevs.  Ours; it only calls the library.  One process = one pool.
 *
 *   openzfs_bench -d DIR [-l disk|mirror2|raidz1x4|raidz2x6] [-r RECORDSIZE]
 *                 [-c off|lz4|zstd3] [-D zero|half|rand] [-s MIB] [-T SECONDS]
 *                 [-a ARC_MIB] [-S] [-t seq,rand,over,sync,obj,snap,cpu] [-L LABEL]
 *   -S  put a separate log file vdev in the pool;  -k  keep the vdev files for the next run
 * CSV lines on stdout:
 *   label,test,layout,recordsize,compression,data,threads,value,unit,wall_s,cpu_s,note
 * Build: openzfs.sh
 */
#include <sys/zfs_context.h>
#include <sys/spa.h>
#include <sys/dmu.h>
#include <sys/dmu_objset.h>
#include <sys/dmu_tx.h>
#include <sys/dsl_prop.h>
#include <sys/dsl_pool.h>
#include <sys/dsl_dataset.h>
#include <sys/dsl_destroy.h>
#include <sys/txg.h>
#include <sys/zap.h>
#include <sys/zil.h>
#include <sys/zil_impl.h>
#include <sys/arc.h>
#include <sys/arc_impl.h>
#include <sys/zio_compress.h>
#include <sys/zfeature.h>
#include <zfeature_common.h>
#include <zfs_fletcher.h>
#include <sys/zio_checksum.h>
#include <sys/spa_impl.h>
#include <sys/fs/zfs.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <malloc.h>
#include <pthread.h>
#include <getopt.h>

extern uint64_t zfs_arc_max, zfs_arc_min;
extern int zfs_flags;
extern char *spa_config_path;

static const char *dir = ".", *layout = "disk", *comp = "off", *dataname = "half",
    *tests = "seq", *label = "openzfs-2.3.2";
static uint64_t recsize = 131072, size_mib = 512, arc_mib = 2048;
static double secs = 4;
static int use_slog, keep;
static char pool[] = "benchpool", dsname[] = "benchpool/d";
static char *vdevs[16]; static int nvdev;
static char *slogpath;
static uint8_t *pattern; static size_t patlen = 64UL << 20;
static objset_t *os; static zilog_t *zl; static spa_t *spa;
static nvlist_t *config;

static double now(void)
{ struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static double cpu(void)
{ struct rusage r; getrusage(RUSAGE_SELF, &r);
  return r.ru_utime.tv_sec + r.ru_utime.tv_usec / 1e6 + r.ru_stime.tv_sec + r.ru_stime.tv_usec / 1e6; }
static uint64_t rng(uint64_t *s)
{ uint64_t x = *s; x ^= x << 13; x ^= x >> 7; x ^= x << 17; return *s = x; }
static void die(const char *w, int e) { fprintf(stderr, "%s: %d %s\n", w, e, strerror(e)); exit(1); }
#define	CK(x) do { int e_ = (x); if (e_) die(#x, e_); } while (0)

static double w0, c0;
static void begin(void) { c0 = cpu(); w0 = now(); }
static void report(const char *test, int threads, double amount, const char *unit, const char *note)
{
	double w = now() - w0, c = cpu() - c0, t = strncmp(test, "cpu_", 4) ? w : c; /* codecs: by CPU time */
	printf("%s,%s,%s,%llu,%s,%s,%d,%.1f,%s,%.3f,%.3f,%s\n", label, test, layout,
	    (u_longlong_t)recsize, comp, dataname, threads, amount / t, unit, w, c, note);
	fflush(stdout);
}

static void mkpattern(void)
{
	pattern = malloc(patlen);
	uint64_t s = 88172645463325252ULL;
	if (!strcmp(dataname, "zero")) { memset(pattern, 0, patlen); return; }
	int half = !strcmp(dataname, "half");
	for (size_t i = 0; i < patlen; i += 8) {
		uint64_t v = rng(&s);
		if (half && (i & 4095) >= 2048) v = 0;
		memcpy(pattern + i, &v, 8);
	}
}
static const void *pat(uint64_t off, size_t len)
{ /* 4 KiB-aligned walk with a stride that is not the record size */
	uint64_t p = (off / 4096 * 4096 * 3 + 4096 * 7) % (patlen - len);
	return pattern + (p & ~4095ULL);
}

static nvlist_t *leaf(const char *path, int log, int top)
{
	nvlist_t *n = fnvlist_alloc();
	fnvlist_add_string(n, ZPOOL_CONFIG_TYPE, VDEV_TYPE_FILE);
	fnvlist_add_string(n, ZPOOL_CONFIG_PATH, path);
	if (top) {
		fnvlist_add_uint64(n, ZPOOL_CONFIG_ASHIFT, 12);
		fnvlist_add_uint64(n, ZPOOL_CONFIG_IS_LOG, log);
		if (log) fnvlist_add_string(n, ZPOOL_CONFIG_ALLOCATION_BIAS, VDEV_ALLOC_BIAS_LOG);
	}
	return n;
}
static void mkfile(const char *p, uint64_t len)
{ /* fully written once, so that it behaves like a disk (no block allocation in the host file system); kept with -k */
	struct stat64 st;
	if (stat64(p, &st) == 0 && st.st_size == (off_t)len && st.st_blocks * 512ULL >= len) return;
	unlink(p);
	int fd = open(p, O_CREAT | O_RDWR | O_TRUNC, 0600); size_t n = 4 << 20; void *z = calloc(1, n);
	for (uint64_t o = 0; fd >= 0 && o < len; o += n) if (pwrite(fd, z, n, o) != (ssize_t)n) die(p, errno);
	if (fd < 0 || fsync(fd)) die(p, errno);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd); free(z);
}
static void mkpool(void)
{
	int n = !strcmp(layout, "disk") ? 1 : !strcmp(layout, "mirror2") ? 2 :
	    !strcmp(layout, "raidz1x4") ? 4 : !strcmp(layout, "raidz2x6") ? 6 : 0;
	if (!n) die("layout", EINVAL);
	nvlist_t *kids[16], *tops[2]; int nt = 0;
	for (int i = 0; i < n; i++) {
		char b[1024]; int rz = n > 2; snprintf(b, sizeof b, "%s/%cvdev%d", dir, rz ? 'r' : 'm', i);
		vdevs[nvdev++] = strdup(b); mkfile(b, (rz ? 2ULL : 4ULL) << 30);
		kids[i] = leaf(b, 0, n == 1);
	}
	if (n == 1) tops[nt++] = kids[0];
	else {
		nvlist_t *g = fnvlist_alloc();
		int rz = !strncmp(layout, "raidz", 5);
		fnvlist_add_string(g, ZPOOL_CONFIG_TYPE, rz ? VDEV_TYPE_RAIDZ : VDEV_TYPE_MIRROR);
		if (rz) fnvlist_add_uint64(g, ZPOOL_CONFIG_NPARITY, layout[5] - '0');
		fnvlist_add_uint64(g, ZPOOL_CONFIG_ASHIFT, 12);
		fnvlist_add_uint64(g, ZPOOL_CONFIG_IS_LOG, 0);
		fnvlist_add_nvlist_array(g, ZPOOL_CONFIG_CHILDREN, (const nvlist_t **)kids, n);
		tops[nt++] = g;
	}
	if (use_slog) {
		char b[1024]; snprintf(b, sizeof b, "%s/slog0", dir);
		slogpath = strdup(b); mkfile(b, 1ULL << 30);
		tops[nt++] = leaf(b, 1, 1);
	}
	nvlist_t *root = fnvlist_alloc(), *props = fnvlist_alloc();
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, (const nvlist_t **)tops, nt);
	for (int i = 0; i < SPA_FEATURES; i++) {
		if (!spa_feature_table[i].fi_zfs_mod_supported) continue;
		char b[128]; snprintf(b, sizeof b, "feature@%s", spa_feature_table[i].fi_uname);
		fnvlist_add_uint64(props, b, 0);
	}
	CK(spa_create(pool, root, props, NULL, NULL));
	CK(dmu_objset_create(dsname, DMU_OST_OTHER, 0, NULL, NULL, NULL));
	uint64_t c = !strcmp(comp, "off") ? ZIO_COMPRESS_OFF : !strcmp(comp, "lz4") ? ZIO_COMPRESS_LZ4 :
	    ZIO_COMPLEVEL_ZSTD(3);
	CK(dsl_prop_set_int(dsname, zfs_prop_to_name(ZFS_PROP_COMPRESSION), ZPROP_SRC_LOCAL, c));
}
static char tag[] = "bench";
static void ds_open(void)
{
	CK(spa_open(pool, &spa, tag));
	CK(dmu_objset_own(dsname, DMU_OST_OTHER, B_FALSE, B_FALSE, tag, &os));
}
static void ds_close(void)
{
	if (zl) { zil_close(zl); zl = NULL; }
	txg_wait_synced(spa_get_dsl(spa), 0);
	dmu_objset_disown(os, B_FALSE, tag);
	spa_close(spa, tag);
}
static void drop(void)
{
	for (int i = 0; i < nvdev; i++) {
		int fd = open(vdevs[i], O_RDWR);
		if (fd >= 0) { fsync(fd); posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); close(fd); }
	}
}
static void reimport(int cold)
{
	ds_close();
	CK(spa_export(pool, &config, B_FALSE, B_FALSE));
	if (cold) drop();
	CK(spa_import(pool, config, NULL, 0));
	ds_open();
}
static uint64_t mkobj(uint64_t bs)
{
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_write(tx, DMU_NEW_OBJECT, 0, 0);
	CK(dmu_tx_assign(tx, DMU_TX_WAIT));
	uint64_t o = dmu_object_alloc(os, DMU_OT_PLAIN_FILE_CONTENTS, bs, DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
	return o;
}
static void put(uint64_t obj, uint64_t off, uint64_t len, int log)
{
	dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_write(tx, obj, off, len);
	CK(dmu_tx_assign(tx, DMU_TX_WAIT));
	dmu_write(os, obj, off, len, pat(off, len), tx);
	if (log) { /* as the file system does it for 8K sync writes: data fetched at commit */
		itx_t *itx = zil_itx_create(TX_WRITE, sizeof (lr_write_t));
		lr_write_t *lr = (lr_write_t *)&itx->itx_lr;
		itx->itx_wr_state = WR_NEED_COPY;
		lr->lr_foid = obj; lr->lr_offset = off; lr->lr_length = len; lr->lr_blkoff = 0;
		BP_ZERO(&lr->lr_blkptr);
		itx->itx_sync = B_TRUE;
		zil_itx_assign(zl, itx, tx);
	}
	dmu_tx_commit(tx);
}
static int get_data(void *arg, uint64_t arg2, lr_write_t *lr, char *buf, struct lwb *lwb, zio_t *zio)
{
	(void) arg; (void) arg2; (void) lwb; (void) zio;
	if (buf == NULL) return ENOTSUP;
	return dmu_read(os, lr->lr_foid, lr->lr_offset, lr->lr_length, buf, DMU_READ_NO_PREFETCH);
}

static void seqwrite(uint64_t obj, uint64_t bytes, const char *name)
{
	begin();
	for (uint64_t o = 0; o < bytes; o += recsize) put(obj, o, recsize, 0);
	txg_wait_synced(spa_get_dsl(spa), 0);
	report(name, 1, bytes / 1e6, "MB/s", "includes txg sync and flush");
}
static void seqread(uint64_t obj, uint64_t bytes, const char *name)
{
	uint64_t io = MAX(recsize, 1048576); void *b = malloc(io);
	begin();
	for (uint64_t o = 0; o < bytes; o += io) CK(dmu_read(os, obj, o, io, b, DMU_READ_PREFETCH));
	report(name, 1, bytes / 1e6, "MB/s", "");
	free(b);
}

struct job { uint64_t obj, bytes, seed, n; int mode; double end; pthread_t t; float *us; };
enum { LATENCIES = 1 << 20 };
static int by_value(const void *a, const void *b) { float x = *(const float *)a, y = *(const float *)b; return (x > y) - (x < y); }
static void *worker(void *a)
{
	struct job *j = a; uint64_t s = j->seed; char *b = malloc(8192);
	while (now() < j->end) {
		double t0 = now();
		uint64_t off = rng(&s) % (j->bytes / 8192) * 8192;
		if (j->mode == 0) CK(dmu_read(os, j->obj, off, 8192, b, DMU_READ_PREFETCH));
		else { put(j->obj, off, 8192, j->mode == 2); if (j->mode == 2) zil_commit(zl, j->obj); }
		j->us[j->n++ % LATENCIES] = (now() - t0) * 1e6;
	}
	free(b);
	return NULL;
}
static void many(uint64_t obj, uint64_t bytes, int threads, int mode, const char *name)
{
	struct job *j = calloc(threads, sizeof *j); uint64_t n = 0;
	static uint64_t seed = 0x9E3779B97F4A7C15ULL;
	begin();
	for (int i = 0; i < threads; i++) {
		j[i].obj = obj; j[i].bytes = bytes; j[i].seed = rng(&seed); j[i].mode = mode; j[i].end = now() + secs;
		j[i].us = malloc(LATENCIES * sizeof (float));
		pthread_create(&j[i].t, NULL, worker, &j[i]);
	}
	for (int i = 0; i < threads; i++) { pthread_join(j[i].t, NULL); n += j[i].n; }
	if (mode == 1) txg_wait_synced(spa_get_dsl(spa), 0);
	float *all = malloc(n * sizeof (float)); uint64_t k = 0; char note[96];
	for (int i = 0; i < threads; i++) { for (uint64_t x = 0; x < MIN(j[i].n, LATENCIES); x++) all[k++] = j[i].us[x]; free(j[i].us); }
	qsort(all, k, sizeof (float), by_value);
	snprintf(note, sizeof note, "p50 %.0f us p99 %.0f us%s", k ? all[k / 2] : 0, k ? all[k * 99 / 100] : 0, mode == 1 ? "; includes final txg sync" : "");
	report(name, threads, n, "IOPS", note);
	free(all); free(j);
}

static void t_obj(void)
{
	int n = 10000; char nm[32]; uint64_t dirobj, o; dmu_tx_t *tx = dmu_tx_create(os);
	dmu_tx_hold_zap(tx, DMU_NEW_OBJECT, B_TRUE, NULL);
	CK(dmu_tx_assign(tx, DMU_TX_WAIT));
	dirobj = zap_create(os, DMU_OT_DIRECTORY_CONTENTS, DMU_OT_NONE, 0, tx);
	dmu_tx_commit(tx);
	begin();
	for (int i = 0; i < n; i++) {
		snprintf(nm, sizeof nm, "file%07d", i);
		tx = dmu_tx_create(os);
		dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
		dmu_tx_hold_zap(tx, dirobj, B_TRUE, nm);
		dmu_tx_hold_write(tx, DMU_NEW_OBJECT, 0, 4096);
		CK(dmu_tx_assign(tx, DMU_TX_WAIT));
		o = dmu_object_alloc_dnsize(os, DMU_OT_PLAIN_FILE_CONTENTS, 4096, DMU_OT_UINT64_OTHER, 168, 512, tx);
		dmu_write(os, o, 0, 4096, pat((uint64_t)i * 4096, 4096), tx);
		CK(zap_add(os, dirobj, nm, 8, 1, &o, tx));
		dmu_tx_commit(tx);
	}
	txg_wait_synced(spa_get_dsl(spa), 0);
	report("obj_create_4k", 1, n, "ops/s", "zap_add + object + 4K data; one sync at end");
	begin();
	for (int i = 0; i < n; i++) {
		dmu_buf_t *db; snprintf(nm, sizeof nm, "file%07d", i);
		CK(zap_lookup(os, dirobj, nm, 8, 1, &o)); CK(dmu_bonus_hold(os, o, tag, &db)); dmu_buf_rele(db, tag);
	}
	report("obj_stat", 1, n, "ops/s", "warm lookup + bonus hold");
	begin();
	for (int i = 0; i < n; i++) {
		snprintf(nm, sizeof nm, "file%07d", i);
		CK(zap_lookup(os, dirobj, nm, 8, 1, &o));
		tx = dmu_tx_create(os);
		dmu_tx_hold_zap(tx, dirobj, B_FALSE, nm);
		dmu_tx_hold_free(tx, o, 0, DMU_OBJECT_END);
		CK(dmu_tx_assign(tx, DMU_TX_WAIT));
		CK(zap_remove(os, dirobj, nm, tx)); CK(dmu_object_free(os, o, tx));
		dmu_tx_commit(tx);
	}
	txg_wait_synced(spa_get_dsl(spa), 0);
	report("obj_remove", 1, n, "ops/s", "one sync at end");
}

static void t_snap(void)
{
	char nm[256]; int nds = 100, rounds = 100, one = 0;
	/* one dataset, one snapshot at a time: each waits for its own txg */
	begin();
	double end = now() + 15;
	while (now() < end && one < 10000) { snprintf(nm, sizeof nm, "s%06d", one++); CK(dmu_objset_snapshot_one(dsname, nm)); }
	report("snap_create_single", 1, one, "snaps/s", "one dataset, each waits for its txg");
	for (int d = 0; d < nds; d++) {
		snprintf(nm, sizeof nm, "%s/k%03d", pool, d);
		CK(dmu_objset_create(nm, DMU_OST_OTHER, 0, NULL, NULL, NULL));
	}
	begin();
	for (int r = 0; r < rounds; r++) {
		nvlist_t *s = fnvlist_alloc(), *err = fnvlist_alloc();
		for (int d = 0; d < nds; d++) { snprintf(nm, sizeof nm, "%s/k%03d@r%05d", pool, d, r); fnvlist_add_boolean(s, nm); }
		CK(dsl_dataset_snapshot(s, NULL, err));
		fnvlist_free(s); fnvlist_free(err);
	}
	report("snap_create_recursive", 1, (double)nds * rounds, "snaps/s", "100 datasets per command; 100 commands");
	for (int cold = 1; cold >= 0; cold--) {
		if (cold) reimport(1);
		int n = 0; uint64_t sum = 0; begin();
		for (int d = -1; d < nds; d++) {
			objset_t *o; char sn[256]; uint64_t id, cookie = 0;
			if (d < 0) snprintf(nm, sizeof nm, "%s", dsname); else snprintf(nm, sizeof nm, "%s/k%03d", pool, d);
			if (d < 0) o = os; else CK(dmu_objset_hold(nm, tag, &o));
			dsl_pool_t *dp = dmu_objset_pool(o);
			if (d < 0) dsl_pool_config_enter(dp, tag);
			while (dmu_snapshot_list_next(o, sizeof sn, sn, &id, &cookie, NULL) == 0) {
				dsl_dataset_t *ds; CK(dsl_dataset_hold_obj(dp, id, tag, &ds));
				sum += dsl_get_used(ds) + dsl_get_referenced(ds) + dsl_get_creation(ds);
				dsl_dataset_rele(ds, tag); n++;
			}
			if (d < 0) dsl_pool_config_exit(dp, tag); else dmu_objset_rele(o, tag);
		}
		char note[64]; snprintf(note, sizeof note, "%d snapshots; name+used+referenced+creation", n);
		report(cold ? "snap_list_cold" : "snap_list_warm", 1, n, "snaps/s", note);
	}
	begin();
	int destroyed = 0;
	for (int r = 0; r < 20; r++) {
		nvlist_t *s = fnvlist_alloc(), *err = fnvlist_alloc();
		for (int d = 0; d < nds; d++) { snprintf(nm, sizeof nm, "%s/k%03d@r%05d", pool, d, r); fnvlist_add_boolean(s, nm); destroyed++; }
		CK(dsl_destroy_snapshots_nvl(s, B_FALSE, err));
		fnvlist_free(s); fnvlist_free(err);
	}
	report("snap_destroy_recursive", 1, destroyed, "snaps/s", "100 per command; 20 commands");
}

static void t_cpu(void)
{ /* single-core speed of the library's own checksum and compression code, 128 KiB blocks */
	size_t n = 131072; zio_cksum_t zc; uint64_t k; double end; char nm[64];
	abd_t *src = abd_alloc_linear(n, B_FALSE), *back = abd_alloc_linear(n, B_FALSE);
	abd_copy_from_buf(src, pattern, n);
	void *b = abd_to_buf(src);
	begin(); for (k = 0, end = now() + 0.4; now() < end; k++) fletcher_4_native_varsize(b, n, &zc);
	report("cpu_fletcher4_scalar", 1, k * n / 1e6, "MB/s", "");
	begin(); for (k = 0, end = now() + 0.4; now() < end; k++) fletcher_4_native(b, n, NULL, &zc);
	report("cpu_fletcher4_best", 1, k * n / 1e6, "MB/s", "");
	static const struct { const char *n; enum zio_checksum c; } sums[] = { { "sha256", ZIO_CHECKSUM_SHA256 }, { "sha512", ZIO_CHECKSUM_SHA512 }, { "skein", ZIO_CHECKSUM_SKEIN }, { "blake3", ZIO_CHECKSUM_BLAKE3 } };
	for (int i = 0; i < 4; i++) {
		spa_t *sp = spa;
		zio_checksum_info_t *ci = &zio_checksum_table[sums[i].c];
		void *tmpl = ci->ci_tmpl_init ? ci->ci_tmpl_init(&sp->spa_cksum_salt) : NULL;
		begin(); for (k = 0, end = now() + 0.4; now() < end; k++) ci->ci_func[0](src, n, tmpl, &zc);
		snprintf(nm, sizeof nm, "cpu_%s", sums[i].n); report(nm, 1, k * n / 1e6, "MB/s", "");
	}
	static const struct { const char *n; enum zio_compress c; uint8_t l; } cs[] = { { "lz4", ZIO_COMPRESS_LZ4, 0 }, { "zstd1", ZIO_COMPRESS_ZSTD, 1 }, { "zstd3", ZIO_COMPRESS_ZSTD, 3 }, { "zstdfast1", ZIO_COMPRESS_ZSTD, ZIO_ZSTD_LEVEL_FAST_1 } };
	for (int i = 0; i < 4; i++) {
		abd_t *dst = NULL; size_t c = 0; char note[64];
		begin(); for (k = 0, end = now() + 0.4; now() < end; k++) { if (dst) abd_free(dst); dst = NULL; c = zio_compress_data(cs[i].c, src, &dst, n, n, cs[i].l); }
		snprintf(nm, sizeof nm, "cpu_%s_compress", cs[i].n); snprintf(note, sizeof note, "128 KiB to %zu", c); report(nm, 1, k * n / 1e6, "MB/s", note);
		if (c >= n || dst == NULL) continue;
		begin(); for (k = 0, end = now() + 0.4; now() < end; k++) (void) zio_decompress_data(cs[i].c, dst, back, c, n, NULL);
		snprintf(nm, sizeof nm, "cpu_%s_decompress", cs[i].n); report(nm, 1, k * n / 1e6, "MB/s", "");
		abd_free(dst);
	}
}

int main(int argc, char **argv)
{
	int c;
	while ((c = getopt(argc, argv, "d:l:r:c:D:s:T:a:t:L:Sk")) != -1) switch (c) {
	case 'd': dir = optarg; break;      case 'l': layout = optarg; break;
	case 'r': recsize = strtoull(optarg, NULL, 0); break;
	case 'c': comp = optarg; break;     case 'D': dataname = optarg; break;
	case 's': size_mib = strtoull(optarg, NULL, 0); break;
	case 'T': secs = atof(optarg); break; case 'a': arc_mib = strtoull(optarg, NULL, 0); break;
	case 't': tests = optarg; break;    case 'L': label = optarg; break;
	case 'S': use_slog = 1; break;      case 'k': keep = 1; break;
	default: fprintf(stderr, "see the head of the source\n"); return 2;
	}
	mallopt(M_MMAP_THRESHOLD, 32 << 20); mallopt(M_TRIM_THRESHOLD, 2000 << 20); mallopt(M_ARENA_MAX, 4);
	char cache[1024]; snprintf(cache, sizeof cache, "%s/pool.cache", dir);
	unlink(cache); spa_config_path = cache;
	zfs_flags = 0;
	zfs_arc_max = arc_mib << 20; zfs_arc_min = zfs_arc_max - (1 << 20);
	mkpattern();
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	mkpool();
	ds_open();
	uint64_t bytes = size_mib << 20;
	if (strstr(tests, "seq")) {
		/* the first pass takes fresh memory from the kernel, which is not what is measured */
		uint64_t o = mkobj(recsize);
		for (uint64_t x = 0; x < bytes; x += recsize) put(o, x, recsize, 0);
		txg_wait_synced(spa_get_dsl(spa), 0);
		o = mkobj(recsize);
		seqwrite(o, bytes, "seq_write");
		reimport(1);
		seqread(o, bytes, "seq_read_cold");
		seqread(o, bytes, "seq_read_warm");
	}
	if (strstr(tests, "rand") || strstr(tests, "over") || strstr(tests, "sync")) {
		uint64_t o = mkobj(recsize);
		for (uint64_t x = 0; x < bytes; x += recsize) put(o, x, recsize, 0);
		if (strstr(tests, "rand")) {
			reimport(1); many(o, bytes, 1, 0, "rand_read_8k_cold");
			reimport(1); many(o, bytes, 8, 0, "rand_read_8k_cold");
			void *b = malloc(1 << 20);
			for (uint64_t x = 0; x < bytes; x += 1 << 20) CK(dmu_read(os, o, x, 1 << 20, b, DMU_READ_PREFETCH));
			many(o, bytes, 1, 0, "rand_read_8k_warm");
			many(o, bytes, 2, 0, "rand_read_8k_warm");
			free(b);
		}
		/* as the engine's benchmark does: each record changed once, so that the memory for it is there */
		for (uint64_t x = 0; x < bytes; x += 131072) put(o, x, 8192, 0);
		txg_wait_synced(spa_get_dsl(spa), 0);
		if (strstr(tests, "over")) many(o, bytes, 1, 1, "rand_write_8k_async");
		if (strstr(tests, "sync")) {
			zl = zil_open(os, get_data, NULL);
			many(o, bytes, 1, 2, use_slog ? "rand_write_8k_sync_slog" : "rand_write_8k_sync");
			many(o, bytes, 8, 2, use_slog ? "rand_write_8k_sync_slog" : "rand_write_8k_sync");
			many(o, bytes, 32, 2, use_slog ? "rand_write_8k_sync_slog" : "rand_write_8k_sync");
		}
	}
	if (strstr(tests, "cpu")) t_cpu();
	if (strstr(tests, "obj")) t_obj();
	if (strstr(tests, "snap")) t_snap();
	ds_close();
	CK(spa_export(pool, NULL, B_FALSE, B_FALSE));
	fflush(stdout);
	for (int i = 0; i < nvdev && !keep; i++) unlink(vdevs[i]);
	if (slogpath && !keep) unlink(slogpath);
	unlink(cache);
	_exit(0);
}
