//! Goal: a dataset has another master key after `zfs rotate-key`, whatever interrupts it, and OpenZFS opens it with the same wrapping key.
//! Method: datasets of a pool that OpenZFS encrypted are rotated; OpenZFS's own code in userland loads the keys and reads every object,
//! whose digests are compared with ours, and `zdb` accounts for every block. The command is killed with its daemon half-way.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use engine::{Ending, PoolHandle};
use tests::block_on;
use tests::golden::Golden;

use crate::cli::Place;
use crate::encrypted::{sums, wrapping_key};
use crate::encrypted_changes::compare;
use crate::golden_read::load_keys;
use crate::golden_write::{import, judge};

const POOL: &str = "m-encrypted";
/// Datasets that are rotated: encryption roots, one that inherits its key, and a volume.
const ROTATED: [&str; 4] = ["pass/inherits", "pass/vol", "hex", "ccm256"];
/// How long a rotation may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

fn rotate(pool: &PoolHandle, name: &str) -> Result<()> {
    let name = format!("{POOL}/{name}");
    let guid = || -> Result<u64> {
        let info = block_on(pool.key_info(&name))?;
        Ok(info.context("it is encrypted")?.guid)
    };
    let before = (guid()?, sums(pool, &name)?);
    block_on(pool.start_key_rotation(&name)).with_context(|| format!("rotate {name}"))?;
    let began = Instant::now();
    loop {
        let found = block_on(pool.key_rotations())?;
        let Some(rotation) = found.first() else { break };
        ensure!(rotation.running, "{name}: {:?}", rotation.failed);
        ensure!(began.elapsed() < PATIENCE, "{name} takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = (guid()?, sums(pool, &name)?);
    ensure!(before.0 != after.0, "{name} has the old key");
    ensure!(before.1 == after.1, "{name} has other objects");
    Ok(())
}

fn history(golden: &Golden) -> Result<()> {
    let (engine, pool) = import(golden)?;
    load_keys(golden, &pool)?;
    let (mut lines, mut keys) = (Vec::new(), Vec::new());
    for name in ROTATED {
        rotate(&pool, name)?;
        lines.extend(sums(&pool, &format!("{POOL}/{name}"))?);
    }
    for root in ["pass", "pass/raw", "hex", "ccm256"] {
        let root = format!("{POOL}/{root}");
        let info = block_on(pool.key_info(&root))?.context("a key")?;
        let key = wrapping_key(golden, &root, info.format)?;
        keys.push(format!("key:{root}={key}"));
    }
    drop(pool);
    block_on(engine.end_pool(POOL, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    judge(golden).context("after the rotations")?;
    if tests::oracle::refpool().is_some() {
        compare(golden, &lines, &keys)?;
    }
    Ok(())
}

#[test]
fn openzfs_reads_what_was_encrypted_anew() {
    let golden = Golden::unpack(POOL).expect("unpack the golden pool");
    history(&golden).unwrap_or_else(|error| panic!("{error:#}"));
}

/// Waits until a line says what is expected.
fn wait_for(place: &Place, line: &str, expected: impl Fn(&str) -> bool) {
    let began = Instant::now();
    loop {
        let said = place.run(line);
        if expected(&said) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{line}: {said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A daemon that is killed goes on where it was.
#[test]
fn a_killed_daemon_goes_on_with_a_rotation() {
    let mut place = Place::new();
    place.serve(&["--nfs-port", "0"]);
    let made = place.run(
        "truncate -s 1G disk && zpool create -O mountpoint=none tank $PWD/disk && head -c 32 /dev/urandom >raw.key && \
         zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/raw.key tank/a && zfs create tank/a/below && \
         head -c 160000000 /dev/urandom >big && head -c 5000 big >small && sanbox put big tank/a:/ && zfs snapshot tank/a@one && \
         zfs hold kept tank/a@one && sanbox put small tank/a:/",
    );
    assert_eq!(made, "");
    let listed = place.run("zfs list -H -o name -r -t all tank");
    let guids = "zfs get -Hp -o value guid tank/a tank/a@one";
    let before = place.run(guids);
    let needs = place.run("zfs rotate-key -n tank/a");
    assert!(needs.starts_with("would copy 15"), "{needs}");
    assert_eq!(
        place.first_line("zfs rotate-key tank"),
        "! cannot rotate the master key of 'tank': it is not encrypted"
    );
    assert_eq!(place.run("zfs rotate-key tank/a"), "");
    wait_for(&place, "zfs rotate-key -s tank/a", |said| {
        said.contains("copied")
    });
    place.kill();
    place.serve(&["--nfs-port", "0"]);
    place.run("zfs load-key -a");
    // The daemon looks for it; whatever it found already, the command goes on with it, too.
    wait_for(&place, "zfs rotate-key -s tank/a", str::is_empty);
    assert_eq!(place.run("zfs list -H -o name -r -t all tank"), listed);
    assert_eq!(place.run(guids), before);
    let same = "sanbox cat tank/a:/big | cmp - big; sanbox cat tank/a:/small | cmp - small; zfs holds -H tank/a@one | cut -f1-2";
    assert_eq!(place.run(same), "tank/a@one\tkept\n");
    let events = place.run("zpool history -i tank | grep -c 'rotate key'");
    assert_eq!(events, "1\n");
    // Given up before it ends, it leaves nothing.
    assert_eq!(
        place.run("zfs rotate-key tank/a && zfs rotate-key -c tank/a"),
        ""
    );
    assert_eq!(place.run("zfs list -H -o name -r -t all tank"), listed);
    place.stop();
    // Without a daemon the command stays to the end.
    let ended =
        place.run("zfs rotate-key -l tank/a | grep -c copied; zfs list -H -o name -r -t all tank");
    assert_eq!(ended.split_once('\n').map(|(_, rest)| rest), Some(&*listed));
    assert_eq!(place.run("zpool export tank"), "");
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}
