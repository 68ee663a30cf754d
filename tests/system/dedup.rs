//! Goal: equal blocks of datasets with `dedup` are stored once, and nothing of that is seen but the space. Method: the same bytes in
//! many files, volumes and datasets, through a mount, with tables of both forms, every checksum, and encryption; the daemon is
//! killed; zdb counts the references, and OpenZFS's own code gives them up in the end.

use tests::oracle;

use crate::cli::Place;
use crate::snapdir::can_mount;

/// A pool on one disk, served, with file systems below `m`.
fn served(create: &str) -> Option<Place> {
    let mut place = Place::new();
    if !can_mount(&place) {
        return None;
    }
    let made = place.run(&format!(
        "truncate -s 1G disk && zpool create {create} -O mountpoint=$PWD/m tank $PWD/disk && head -c 8388608 /dev/urandom > random && \
         yes 'a line of text that is like all the others' | head -c 4194304 > text && cat random text > both"
    ));
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    Some(place)
}

fn number(place: &mut Place, command: &str) -> u64 {
    let said = place.run(command);
    said.trim()
        .parse()
        .unwrap_or_else(|_| panic!("a number: {said}"))
}

/// Exports the pool and has zdb look for what is referenced more or less often than the tables say.
fn judge(place: &mut Place) {
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing wrong");
}

#[test]
#[ignore = "long: each checksum, with zdb after each step"]
fn equal_blocks_are_stored_once() {
    for create in ["", "-o feature@fast_dedup=disabled"] {
        let Some(mut place) = served(create) else {
            return;
        };
        let before = number(
            &mut place,
            "zpool sync tank; zpool get -Hpo value allocated tank",
        );
        let copied = place.run(
            "zfs create -o dedup=on -o recordsize=16k tank/a && zfs create -o dedup=verify -o recordsize=16k tank/b && \
             zfs create -o dedup=sha512 -o recordsize=16k -o compression=zstd tank/c && zfs create -o dedup=edonr,verify tank/d && \
             for fs in a b c d; do for n in 1 2 3; do cp --reflink=never both m/$fs/$n; done; done; zfs snapshot tank/a@kept; zpool sync tank",
        );
        assert_eq!(copied, "");
        let taken = number(&mut place, "zpool get -Hpo value allocated tank") - before;
        // The same in all four would be 144 MiB; a, b share a table, c and d have one each.
        assert!(
            taken < 36 << 20,
            "{taken} bytes for three tables' worth of blocks"
        );
        let rows = place.run("zpool status -D tank | grep -A12 'dedup:'");
        assert!(
            rows.contains("DDT entries") && rows.contains("Total"),
            "{rows}"
        );
        let json = place.run("zpool status -jD --json-int tank");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let table = &json["pools"]["tank"]["dedup_stats"];
        let entries = table["obj_count"].as_u64().expect("a number");
        assert!(rows.contains(&format!("DDT entries {entries},")), "{rows}");
        assert_eq!(table["ddt_stats"]["total"]["blocks"], entries, "{table}");
        // Changed in place, removed, cut, overwritten by equal bytes; what others have stays.
        let changed = place.run(
            "printf x | dd of=m/a/1 bs=1 seek=100000 conv=notrunc status=none; rm m/a/2; truncate -s 100000 m/b/1; \
             dd if=both of=m/b/2 bs=16k conv=notrunc status=none; dd if=random of=m/c/1 bs=16k seek=3 conv=notrunc status=none; \
             zpool sync tank; cmp both m/a/3; cmp both m/b/2; cmp both m/b/3; cmp both m/c/2; cmp both m/d/1; sync m/c/1",
        );
        assert_eq!(changed, "");
        // What was synced outlives a kill: the log brings it, and its blocks are counted anew.
        assert_eq!(
            place.run("cp --reflink=never both m/a/4 && sync m/a/4 m/a"),
            ""
        );
        place.kill();
        for fs in ["a", "b", "c", "d", ""] {
            place.run(&format!("fusermount3 -uqz m/{fs} || umount -lq m/{fs}"));
        }
        place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
        let there = place.run(
            "cmp both m/a/4; cmp both m/b/3; cmp both m/d/2; zfs rollback tank/a@kept; cmp both m/a/2; zfs clone tank/a@kept tank/e; \
             zfs promote tank/e; zfs destroy tank/a; cmp both m/e/1; zpool scrub -w tank; zpool status -x tank",
        );
        assert_eq!(there, "pool 'tank' is healthy\n");
        judge(&mut place);
        if oracle::refpool().is_none() {
            return tests::skip(
                "deduplicated blocks and OpenZFS's own code",
                "refpool is not built",
            );
        }
        let (directory, images) = (place.path("work"), [place.path("work").join("disk")]);
        for operation in [
            "destroy:tank/b",
            "destroy:tank/e@kept",
            "destroy:tank/e",
            "destroy:tank/c",
        ] {
            oracle::refpool_does("tank", &images, &[operation.to_owned()])
                .expect("OpenZFS gives references up");
            oracle::zdb_clean(&directory, "tank").expect("zdb finds the others in order");
        }
    }
}

#[test]
fn clones_of_an_encrypted_file_system_share_blocks() {
    let Some(mut place) = served("") else { return };
    let made = place.run(
        "head -c 32 /dev/urandom > key; zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/key -o dedup=on \
         -o recordsize=16k tank/s && for n in 1 2 3; do cp --reflink=never both m/s/$n; done; zfs snapshot tank/s@a; zfs clone \
         -o dedup=on -o recordsize=16k tank/s@a tank/t; \
         for n in 4 5; do cp --reflink=never both m/t/$n; done; zpool sync tank",
    );
    assert_eq!(made, "");
    let taken = number(&mut place, "zpool get -Hpo value allocated tank");
    assert!(taken < 16 << 20, "{taken} bytes for one file of 12 MiB");
    let read = place.run(
        "zfs unmount tank/t; zfs unmount tank/s; zfs unload-key -a >/dev/null; zfs mount -l tank/s; zfs mount tank/t; \
         cmp both m/s/3; cmp both m/t/5; rm m/s/*; zfs destroy tank/t; zpool sync tank",
    );
    assert_eq!(read, "");
    judge(&mut place);
}

#[test]
fn tables_have_a_quota_and_can_be_pruned() {
    let Some(mut place) = served("") else { return };
    let entries =
        "zpool sync tank; zpool status -D tank | sed -n 's/.*DDT entries \\([0-9]*\\).*/\\1/p'";
    let made = place.run("zfs create -o dedup=on -o recordsize=4k -o compression=off tank/a; cp random m/a/1; cp both m/a/2");
    assert_eq!(made, "");
    // 2,048 blocks of random bytes, twice; and the text, whose blocks repeat little at this size.
    let unlimited = number(&mut place, entries);
    assert!(unlimited >= 2048, "{unlimited} entries");
    assert_eq!(
        place.run("zpool set dedup_table_quota=1K tank; zpool sync tank"),
        ""
    );
    let refused = place.run("head -c 4194304 /dev/urandom > more; cp more m/a/3; cp random m/a/4; zpool sync tank; cmp more m/a/3");
    assert_eq!(refused, "");
    assert_eq!(
        number(&mut place, entries),
        unlimited,
        "no new entries, and the old ones are used"
    );
    assert_eq!(
        place.run(
            "zpool set dedup_table_quota=none tank; zpool prefetch -t ddt tank; cp more m/a/5"
        ),
        ""
    );
    assert_eq!(number(&mut place, entries), unlimited + 1024);
    // Everything that has one reference; what has more stays.
    let pruned = place.run("zpool ddtprune -p 100 tank; zpool history tank | grep -c ddtprune");
    assert_eq!(pruned, "1\n");
    let left = number(&mut place, entries);
    assert!(
        (2048..unlimited + 1024).contains(&left),
        "{left} entries of blocks with several references"
    );
    // A block without an entry is freed as any other, and equal ones that come later make a new one.
    assert_eq!(place.run("cp more m/a/6; cp more m/a/7; rm m/a/5 m/a/3; zpool sync tank; cmp more m/a/6; cmp more m/a/7"), "");
    let said = place.run(
        "zpool ddtprune tank 2>&1 | head -1; zpool ddtprune -d 0 tank 2>&1 | head -1; zpool ddtprune -p 101 tank 2>&1 | head -1; \
         zpool ddtprune -d 1 -p 2 tank 2>&1 | head -1; zpool prefetch -t x tank 2>&1 | head -1",
    );
    assert_eq!(
        said,
        "missing amount option (-d|-p <value>)\ninvalid days value\ninvalid percentage value\n-p cannot be combined with -d option\n\
         unsupported prefetch type\n"
    );
    judge(&mut place);
}
