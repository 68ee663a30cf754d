//! Received properties, and values that came later than their property: what OpenZFS's own code stored is shown, overridden, set
//! aside and taken back as OpenZFS does it, and OpenZFS reads what we stored. A stream is not needed for it: `refpool` stores
//! what a stream brings by the functions that a receive calls.

use std::path::PathBuf;

use tests::oracle;

use crate::cli::Place;

struct Pool {
    place: Place,
    images: Vec<PathBuf>,
}

impl Pool {
    fn openzfs(&self, operations: &[&str]) -> String {
        self.check("zpool export tank", "");
        let operations: Vec<String> = operations.iter().map(|&text| text.to_owned()).collect();
        let said =
            oracle::refpool_does("tank", &self.images, &operations).expect("OpenZFS does it");
        self.check("zpool import -d $PWD tank", "");
        said
    }

    fn check(&self, line: &str, expect: &str) {
        assert_eq!(self.place.run(line), expect, "{line}");
    }
}

/// A pool with three file systems in a row and a volume.
fn pool() -> Option<Pool> {
    oracle::refpool()?;
    let place = Place::new();
    let images = vec![place.path("work").join("d")];
    let pool = Pool { place, images };
    pool.check(
        "truncate -s 256M d && zpool create -O mountpoint=none tank $PWD/d && zfs create -p tank/a/b && zfs create -sV 8M tank/v",
        "",
    );
    Some(pool)
}

fn judged(pool: &Pool) {
    pool.check("zpool export tank", "");
    oracle::accounts_agree(&pool.images).expect("the accounts are right");
    if oracle::has_zdb() {
        oracle::zdb_clean(&pool.place.path("work"), "tank").expect("zdb finds nothing");
    }
}

const COLUMNS: &str = "zfs get -Hp -o name,property,value,received,source";

#[test]
fn received_properties_are_shown_overridden_and_taken_back() {
    let Some(pool) = pool() else { return };
    pool.openzfs(&[
        "recv:tank/a=atime/0",
        "recv:tank/a=exec/0",
        "recv:tank/a=compression/16",
        "recv:tank/a=m:x/hello",
        "recv:tank/a=quota/100000000",
        "recv:tank/a=reservation/20000000",
        "recv:tank/a=refquota/90000000",
        "recv:tank/a=refreservation/10000000",
    ]);
    // Limits are read from where they are in force, and shown as set here: so, too, by OpenZFS (dsl_dir_stats gives them no source).
    let shown = "tank/a\tatime\toff\toff\treceived\n\
                 tank/a\texec\toff\toff\treceived\n\
                 tank/a\tcompression\tzstd\tzstd\treceived\n\
                 tank/a\tm:x\thello\thello\treceived\n\
                 tank/a\tquota\t100000000\t100000000\tlocal\n\
                 tank/a\treservation\t20000000\t20000000\tlocal\n\
                 tank/a\trefquota\t90000000\t90000000\tlocal\n\
                 tank/a\trefreservation\t10000000\t10000000\tlocal\n";
    let all = "atime,exec,compression,m:x,quota,reservation,refquota,refreservation";
    pool.check(&format!("{COLUMNS} {all} tank/a"), shown);
    pool.check(
        &format!("{COLUMNS} atime,m:x,quota tank/a/b"),
        "tank/a/b\tatime\toff\t-\tinherited from tank/a\n\
         tank/a/b\tm:x\thello\t-\tinherited from tank/a\n\
         tank/a/b\tquota\t0\t-\tdefault\n",
    );
    // -s picks by source, and all five columns have headings.
    pool.check(
        "zfs get -s received -o property,value all tank/a | sed -n '1p;/exec/p'",
        "PROPERTY              VALUE\n\
         exec                  off\n",
    );
    pool.check(
        "zfs get -o all exec tank/a",
        "NAME    PROPERTY  VALUE  RECEIVED  SOURCE\n\
         tank/a  exec      off    off       received\n",
    );
    // Overridden, and set aside.
    pool.check(
        "zfs set atime=on quota=110M reservation=30M refreservation=15M refquota=100M m:x=mine tank/a && zfs inherit exec tank/a",
        "",
    );
    let changed = "tank/a\tatime\ton\toff\tlocal\n\
                   tank/a\texec\ton\toff\tdefault\n\
                   tank/a\tcompression\tzstd\tzstd\treceived\n\
                   tank/a\tm:x\tmine\thello\tlocal\n\
                   tank/a\tquota\t115343360\t100000000\tlocal\n\
                   tank/a\treservation\t31457280\t20000000\tlocal\n\
                   tank/a\trefquota\t104857600\t90000000\tlocal\n\
                   tank/a\trefreservation\t15728640\t10000000\tlocal\n";
    pool.check(&format!("{COLUMNS} {all} tank/a"), changed);
    // A parent that ever received properties makes its children remember that they inherit.
    pool.check("zfs set exec=off tank/a/b && zfs inherit exec tank/a/b", "");
    let said = pool.openzfs(&[
        "get:tank/a=atime",
        "get:tank/a=exec",
        "get:tank/a=m:x",
        "get:tank/a=quota",
        "get:tank/a=refreservation",
        "recv:tank/a/b=exec/0",
        "get:tank/a/b=exec",
    ]);
    for line in [
        "get tank/a atime 1 tank/a\n",
        "get tank/a exec 1 \n",
        "get tank/a m:x mine tank/a\n",
        "get tank/a quota 115343360 tank/a\n",
        "get tank/a refreservation 15728640 tank/a\n",
        "get tank/a/b exec 1 \n",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    // Back to what came.
    for name in [
        "atime",
        "exec",
        "m:x",
        "quota",
        "reservation",
        "refquota",
        "refreservation",
    ] {
        pool.check(&format!("zfs inherit -S {name} tank/a"), "");
    }
    pool.check(&format!("{COLUMNS} {all} tank/a"), shown);
    // The limits are in force, not only shown.
    let referenced = pool.place.run("zfs get -Hp -o value referenced tank/a");
    let referenced: u64 = referenced.trim().parse().expect("a number");
    pool.check(
        "zfs get -Hp -o value usedbyrefreservation tank/a",
        &format!("{}\n", 10_000_000 - referenced),
    );
    pool.check(
        "zfs set reservation=120M tank/a",
        "! cannot set property for 'tank/a': size is greater than available space\n[1]\n",
    );
    judged(&pool);
}

#[test]
fn what_cannot_go_back_says_so() {
    let Some(pool) = pool() else { return };
    pool.check(
        "zfs inherit -S volsize tank/v; zfs inherit -S version tank/a; zfs inherit quota tank/a",
        "! 'volsize' property cannot be reverted to a received value\n\
         ! 'version' property cannot be reverted to a received value\n\
         ! 'quota' property cannot be inherited\n\
         ! use 'zfs set quota=none' to clear\n\
         ! use 'zfs inherit -S quota' to revert to received value\n\
         [1]\n",
    );
    // A limit below what is used is refused, as if it were set.
    pool.check("zfs set quota=50M tank/a", "");
    pool.openzfs(&["recv:tank/a=quota/1000"]);
    pool.check(
        "zfs inherit -S quota tank/a",
        "! cannot inherit quota for 'tank/a': size is less than current used or reserved space\n[1]\n",
    );
    // Without a received value it is the default's turn.
    pool.check(
        "zfs set quota=50M tank && zfs inherit -S quota tank && zfs get -H -o value,source quota tank",
        "none\tdefault\n",
    );
    // With -r, volumes that have no such property are passed over.
    pool.check(
        "zfs set atime=off tank/a/b && zfs inherit -r atime tank && zfs get -H -o value,source atime tank/a/b",
        "on\tdefault\n",
    );
    judged(&pool);
}

/// `redundant_metadata=some|none` and `snapdir=disabled` are kept apart, so that an OpenZFS that does not know them finds the
/// default.
#[test]
fn later_values_are_stored_apart() {
    let Some(pool) = pool() else { return };
    pool.check(
        "zfs set redundant_metadata=none snapdir=disabled tank/a && zfs set redundant_metadata=some tank/a/b",
        "",
    );
    let said = pool.openzfs(&[
        "get:tank/a=redundant_metadata",
        "get:tank/a=snapdir",
        "get:tank/a/b=redundant_metadata",
        "get:tank/a/b=snapdir",
        "set:tank=redundant_metadata/2",
    ]);
    for line in [
        "get tank/a redundant_metadata 3 tank/a\n",
        "get tank/a snapdir 2 tank/a\n",
        "get tank/a/b redundant_metadata 2 tank/a/b\n",
        "get tank/a/b snapdir 2 tank/a\n",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    pool.check(
        "zfs get -H -o name,property,value,source -t filesystem -r redundant_metadata,snapdir tank",
        "tank\tredundant_metadata\tsome\tlocal\n\
         tank\tsnapdir\thidden\tdefault\n\
         tank/a\tredundant_metadata\tnone\tlocal\n\
         tank/a\tsnapdir\tdisabled\tlocal\n\
         tank/a/b\tredundant_metadata\tsome\tlocal\n\
         tank/a/b\tsnapdir\tdisabled\tinherited from tank/a\n",
    );
    pool.check("zpool export tank", "");
    if oracle::has_zdb() {
        let work = pool.place.path("work");
        let objects = oracle::zdb_clean_but(&work, "tank", &|_| false).expect("zdb finds nothing");
        for (entry, times) in [
            ("redundant_metadata = 0", 3),
            ("redundant_metadata$iuv = 3", 1),
            ("redundant_metadata$iuv = 2", 2),
            ("snapdir = 0", 1),
            ("snapdir$iuv = 2", 1),
        ] {
            assert_eq!(objects.matches(entry).count(), times, "{entry}");
        }
    }
    pool.check("zpool import -d $PWD tank", "");
    pool.check(
        "zfs set redundant_metadata=most tank/a && zfs inherit snapdir tank/a && zfs inherit redundant_metadata tank/a/b",
        "",
    );
    let said = pool.openzfs(&["get:tank/a/b=redundant_metadata", "get:tank/a/b=snapdir"]);
    assert!(
        said.contains("get tank/a/b redundant_metadata 1 tank/a\n"),
        "{said}"
    );
    assert!(said.contains("get tank/a/b snapdir 0 \n"), "{said}");
    judged(&pool);
}
