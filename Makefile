# Two commands on a fresh Debian machine: `make run` (the appliance, with a tour) and `make test`.
# Everything else is a part of one of them, or a heavier look at the same code.

CARGO ?= cargo
BENCH_DIR ?= /var/tmp
TEST = $(CARGO) xtask test $(if $(SEEDS),--seeds $(SEEDS))

.PHONY: help run build oracles lint test test-long test-unit test-sim test-system test-real bench bench-nfs bench-engine bench-parity bench-codec clean

help:
	@echo 'make run        build and start the appliance on virtual disks, with a tour (^C stops it)'
	@echo 'make test       lint, unit, simulated and whole-system tests (installs zdb and friends when root)'
	@echo 'make test-long  the same, with the tests that take long (adds ~30 minutes)'
	@echo 'make test-real  the same pools and shares under real kernels in a QEMU machine (adds ~15 minutes),'
	@echo '               pjdfstest, a full pool, a directory of a million names'
	@echo 'make test-sim   SEEDS=n simulated power cuts, and as many of disks that fail'
	@echo 'make bench-nfs  NFS beside nfs-ganesha on ext4, in the same rounds (needs root, nfs-ganesha, fio with its nfs engine)'
	@echo 'make bench-engine OPENZFS=DIR  the engine beside OpenZFS built in userland there (tests/bench/openzfs.sh DIR), in the same rounds'
	@echo 'make bench-parity  parity and reconstruction beside raidz_test -B (zfs-test), six minutes'
	@echo 'make bench-codec  fletcher4, lz4 and zstd-3 beside libzpool, liblz4 and libzstd, two minutes'
	@echo 'make bench      the engine at its door: reads, writes, and the CPU they cost (BENCH_DIR: where the disk lies)'

run:
	$(CARGO) build --release --package sanbox --package sim --bins
	scripts/run

build:
	$(CARGO) build --workspace --all-targets

oracles:
	tests/oracles/ensure

lint:
	$(CARGO) fmt --all --check
	$(CARGO) xtask tidy
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# One command for all the tests, so that they are built once, run beside each other and are counted in one line.
test: oracles lint
	$(TEST)

# The tests that `make test` leaves out and names, too, and more seeds: before each release, and after a change of what they test.
test-long: oracles lint
	$(TEST) --long

test-unit:
	$(TEST) unit

test-sim:
	$(TEST) sim

test-system: oracles
	$(TEST) system

test-real: oracles
	$(CARGO) build --release --package sanbox
	tests/interop/run

bench:
	$(CARGO) run --release --package tests --example engine_bench -- $(BENCH_DIR)

bench-parity:
	$(CARGO) run --release --package codec --example parity_bench

bench-codec:
	$(CC) -O2 -o target/codec_peer tests/bench/codec_peer.c -l:liblz4.so.1 -l:libzstd.so.1 -l:libzpool.so.6
	$(CARGO) run --release --package codec --example codec_bench -- target/codec_peer

bench-nfs:
	$(CARGO) build --release --package sanbox
	tests/bench/nfs.sh

bench-engine:
	$(CARGO) build --release --package tests --example engine_bench
	tests/bench/engine.sh $(OPENZFS)/openzfs_bench

clean:
	$(CARGO) clean
