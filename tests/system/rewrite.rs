//! Goal: `zfs rewrite` changes how files and volumes are stored and nothing that is seen of them, beside writers and killed in the
//! middle. Method: space in use before and after compression is switched on; sums, times and holes; zdb in the end.

use tests::oracle;

use crate::cli::Place;
use crate::snapdir::can_mount;

fn used(place: &Place, dataset: &str) -> u64 {
    let line = format!("zpool sync tank; zfs get -Hpo value used {dataset}");
    place.run(&line).trim().parse().expect("a number")
}

#[test]
fn files_and_volumes_are_stored_anew() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 512M disk && zpool create -O mountpoint=none -O compression=off tank $PWD/disk && zfs create tank/fs && \
         zfs create -V 32M tank/vol && yes 'the same line' | head -c 20000000 > big && truncate -s 30M big && \
         sanbox put big tank/fs:/big && sanbox mkdir tank/fs:/d && sanbox put big tank/fs:/d/other",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let before = used(&place, "tank/fs");
    let listed = place.run("sanbox ls -l tank/fs:/");
    assert_eq!(place.run("zfs set compression=lz4 tank"), "");
    let refused = place.run("zfs rewrite tank/fs:/; zfs rewrite tank/fs:/nothing; zfs rewrite tank/none; zfs rewrite -l x tank/vol");
    assert!(
        refused.contains("it is a directory; -r rewrites the files in it")
            && refused.contains("neither a path in a mounted file system nor a volume")
            && refused.contains("invalid number 'x'"),
        "{refused}"
    );
    // A part: about half of the data of one of two files.
    assert_eq!(
        place.run("zfs rewrite -v -l 10M tank/fs:/big"),
        "tank/fs:/big\n"
    );
    let part = used(&place, "tank/fs");
    let saved = before - part;
    assert!((9 << 20..11 << 20).contains(&saved), "{before} {part}");
    assert_eq!(
        place.run("zfs rewrite -rv tank/fs:/ | sort"),
        "tank/fs:/big\ntank/fs:/d/other\n"
    );
    let after = used(&place, "tank/fs");
    assert!(after < before / 10, "{before} {after}");
    assert_eq!(place.run("zfs rewrite -v tank/vol"), "tank/vol\n");
    assert_eq!(
        place.run("sanbox ls -l tank/fs:/"),
        listed,
        "size and times stay"
    );
    let same = "sanbox get tank/fs:/big a && cmp big a; sanbox get tank/fs:/d/other c && cmp big c";
    assert_eq!(place.run(same), "");
    // A snapshot keeps the blocks of before; a kill in the middle loses nothing.
    let kept = place.run("zfs snapshot tank/fs@kept; zfs set compression=off tank");
    assert_eq!(kept, "");
    let mut running = place
        .command("zfs")
        .args(["rewrite", "-r", "tank/fs:/"])
        .spawn()
        .expect("zfs runs");
    std::thread::sleep(std::time::Duration::from_millis(60));
    place.kill();
    let _ = running.wait();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    assert_eq!(place.run(same), "");
    let both = place.run(
        "zfs rewrite -r tank/fs:/ && zpool sync tank && sanbox get tank/fs@kept:/big old && cmp big old",
    );
    assert_eq!(both, "");
    assert_eq!(place.run(same), "");
    place.stop();
    let directory = place.path("work");
    assert_eq!(place.run("zpool export tank"), "");
    oracle::zdb_clean(&directory, "tank").expect("zdb finds nothing");
}

#[test]
fn paths_of_mounts_are_followed_into_the_file_systems_below() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    let made = place.run(
        "truncate -s 512M disk && zpool create -O compression=off -O mountpoint=$PWD/m tank $PWD/disk && zfs create tank/sub",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0", "--mount"]);
    let written = place.run(
        "yes abc | head -c 5000000 > m/one; mkdir m/d; cp m/one m/d/two; cp m/one m/sub/three; \
         ln -s one m/link; ln m/d/two m/d/same; zfs set compression=lz4 tank",
    );
    assert_eq!(written, "");
    let work = place.path("work");
    assert_eq!(place.run("zfs rewrite -v m/one m/link"), "m/one\n");
    assert_eq!(
        place.run("zfs rewrite -rvx $PWD/m | sed 's/same/two/' | sort"),
        "DIR/m/d/two\nDIR/m/one\n"
    );
    // Beside a writer of the same file.
    let line = "(for i in 1 2 3 4 5 6 7 8 9; do printf $i | dd of=m/one bs=1 seek=${i}000 conv=notrunc status=none; done) & \
                zfs rewrite -rv m | sed 's/same/two/' | sort; wait; cmp -l m/one m/d/two | wc -l; cmp m/d/two m/sub/three";
    assert_eq!(place.run(line), "DIR/m/sub/three\nm/d/two\nm/one\n9\n");
    let small: u64 = used(&place, "tank");
    assert!(small < 3_000_000, "{small} bytes of 15,000,000 are in use");
    // What is there already is not written again where the checksum tells so, unless that is what is asked for.
    let written = |line: &str| -> u64 {
        let line = format!("{line} && zpool sync tank && zfs get -Hpo value written tank");
        let written = place.run(&line);
        written
            .trim()
            .parse()
            .unwrap_or_else(|_| unreachable!("{line}: {written}"))
    };
    let kept = written(
        "zfs set checksum=sha256 tank && head -c 5000000 /dev/urandom > noise && cp noise m/one && zpool sync tank && \
         zfs snapshot tank@before && dd if=noise of=m/one bs=128k conv=notrunc status=none",
    );
    assert!(kept < 500_000, "{kept}");
    let anew = written("zfs rewrite m/one");
    assert!(anew > 5_000_000, "{anew}");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    oracle::zdb_clean(&work, "tank").expect("zdb finds nothing");
}
