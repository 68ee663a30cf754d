//! Goal: what `sanbox estimate` says before a property is set is what the property brings. Method: files of random blocks with doubles in
//! several datasets, snapshots and a volume; `zdb -S` counts the doubles, and so does a table once `dedup` is on; files are written with
//! each compression and compared with what was foretold.

use serde_json::Value;
use tests::oracle;

use crate::cli::Place;

/// A pool with files of text and of blocks of random bytes, some of which are there many times.
fn filled() -> Place {
    let place = Place::new();
    let made = place.run(
        "truncate -s 1G disk && zpool create -O mountpoint=none -O recordsize=8k tank $PWD/disk && zfs create tank/a && \
         zfs create tank/b && zfs create tank/b/c && zfs create -V 16M -o volblocksize=16k tank/v && \
         head -c 8192000 /dev/urandom > one && head -c 4096000 /dev/urandom > two && head -c 81920 one > few && \
         (cat one one two; for n in $(seq 100); do cat few; done) > all && seq 1000000 | head -c 6000000 > text && \
         sanbox put all tank/a:/all && sanbox put text tank/a:/text && zfs snapshot tank/a@s && sanbox rm tank/a:/text && \
         sanbox put text tank/b:/text && sanbox put one tank/b/c:/one && sanbox put one tank/b/c:/again && \
         zfs snapshot -r tank/b@s && zfs clone tank/a@s tank/d && zpool sync tank",
    );
    assert!(
        !made.contains("cannot") && !made.contains("sanbox:"),
        "{made}"
    );
    place
}

fn json(place: &Place, line: &str) -> Value {
    let said = place.run(&format!("sanbox estimate {line} --json"));
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn number(value: &Value, key: &str) -> f64 {
    let found = value.pointer(key).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn doubles_are_those_that_zdb_and_a_table_find() {
    let place = filled();
    let all = json(&place, "dedup tank");
    assert_eq!(number(&all, "/sample/share"), 1.0, "{all}");
    assert_eq!(number(&all, "/weak_checksums/pairs_different"), 0.0);
    assert!(
        number(&all, "/weak_checksums/pairs_compared") > 1000.0,
        "{all}"
    );
    // Small samples: the truth lies within twice the error, and the error is that of so few.
    for rows in ["100", "700"] {
        let some = json(&place, &format!("dedup tank --sample {rows}"));
        let off = (number(&some, "/ratio") - number(&all, "/ratio")).abs();
        let error = number(&some, "/ratio_error");
        assert!(
            number(&some, "/sample/share") < 1.0 && error > 0.0,
            "{some}"
        );
        assert!(off < 2.0 * error && error < 1.0, "{some}");
        assert_eq!(some["dsize"], all["dsize"]);
    }
    let text = place.run("sanbox estimate dedup tank/a -p; sanbox estimate dedup tank/a@s; sanbox estimate dedup tank/d");
    assert!(
        text.contains("advice        worth it") && text.contains("looked at     0 blocks"),
        "{text}"
    );
    // The same again, with dedup on.
    let told = json(&place, "dedup tank/a");
    let real = place.run(
        "zfs create -o dedup=on tank/new && sanbox put all tank/new:/all && sanbox put text tank/new:/text && zpool sync tank && \
         zpool get -Hpo value dedupratio tank; zfs destroy tank/new",
    );
    let real: f64 = real.trim().trim_end_matches('x').parse().expect("a ratio");
    assert!(
        (real - number(&told, "/ratio")).abs() < 0.01,
        "{real} {told}"
    );
    assert_eq!(place.run("zpool sync tank; zpool export tank"), "");
    if !oracle::has_zdb() {
        return;
    }
    let said = oracle::zdb()
        .args(["-e", "-p", &place.work(), "-S", "tank"])
        .output()
        .expect("zdb runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let ratio = format!("dedup = {:.2},", number(&all, "/ratio"));
    assert!(said.contains(&ratio), "{ratio} {said}");
    // The same rows of its histogram, as far as it prints them.
    for row in all["histogram"].as_array().expect("rows") {
        let (references, blocks) = (number(row, "/references"), number(row, "/blocks"));
        let printed = said.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == references.to_string()).then(|| words.next().map(str::to_owned))?
        });
        // Above a thousand it prints three digits.
        let printed = printed.unwrap_or_default();
        let exact: Result<f64, _> = printed.parse();
        match exact {
            Ok(exact) => assert_eq!(exact, blocks, "{references}: {said}"),
            Err(_) => assert_eq!(printed, format!("{:.2}K", blocks / 1024.0), "{said}"),
        }
    }
}

#[test]
#[ignore = "long: each compressor; deduplication is foretold in another test"]
fn compression_is_as_it_was_foretold() {
    let mut place = filled();
    let made = place.run(
        "zfs create -o compression=off -o recordsize=128k tank/plain && (cat text one; seq 300000 900000) > mixed && \
         sanbox put mixed tank/plain:/mixed && zpool sync tank",
    );
    assert_eq!(made, "");
    let told = json(&place, "compression tank/plain");
    for trial in told["trials"].as_array().expect("trials") {
        let name = trial["algorithm"].as_str().expect("a name");
        let real = place.run(&format!(
            "zfs create -o compression={name} -o recordsize=128k tank/{name} && sanbox put mixed tank/{name}:/mixed && \
             zpool sync tank && zfs get -Hpo value compressratio tank/{name}"
        ));
        let real: f64 = real.trim().parse().expect("a ratio");
        // compressratio counts the metadata of the file system, too.
        let off = (number(trial, "/ratio") - real).abs() / real;
        assert!(off < 0.04, "{name}: {real} {told}");
    }
    assert_eq!(number(&told, "/sample/blocks"), number(&told, "/blocks"));
    let some = json(&place, "compression tank/plain --sample 60");
    for (few, all) in some["trials"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(told["trials"].as_array().into_iter().flatten())
    {
        let off = (number(few, "/ratio") - number(all, "/ratio")).abs();
        assert!(
            off <= 2.0 * number(few, "/ratio_error") + 1e-9,
            "{some} {told}"
        );
    }
    let text = place
        .run("sanbox estimate compression tank; sanbox estimate compression tank/plain | tail -1");
    assert!(text.contains("(now)") && text.contains("advice"), "{text}");
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    // Encrypted ones need their key; a client that goes away, or wrong words, harm nothing.
    let locked = place.run(
        "head -c 32 /dev/urandom > key; zfs create -o encryption=on -o keyformat=raw -o keylocation=file://$PWD/key tank/e && \
         sanbox put text tank/e:/text && sanbox estimate compression tank/e | grep -c '^zstd-3'; zfs unload-key tank/e; \
         sanbox estimate compression tank/e | grep locked; sanbox estimate dedup tank/e | grep encrypted; \
         sanbox estimate dedup tank/none; sanbox estimate dedup tank --sample 0; sanbox estimate dedup",
    );
    for words in [
        "their key is not loaded",
        "are encrypted, where equal blocks look different",
        "cannot open 'tank/none': dataset does not exist",
        "--sample 0: a number from 1",
        "missing dataset argument",
    ] {
        assert!(locked.contains(words), "{words}: {locked}");
    }
    assert!(locked.starts_with("1\n"), "{locked}");
}

#[test]
fn a_pool_in_use_goes_on_and_the_client_may_leave() {
    let mut place = filled();
    place.serve(&["--nfs-port", "0", "--iscsi-port", "0"]);
    let mut running: Vec<_> = (0..4)
        .map(|n| {
            let what = if n % 2 == 0 { "dedup" } else { "compression" };
            let mut command = place.command("sanbox");
            command.args(["estimate", what, "tank", "-v"]);
            command
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("it runs")
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    for child in &mut running[..2] {
        child.kill().expect("a child is killed");
    }
    let used = place.run("sanbox put all tank/b:/during && sanbox rm tank/a:/all && zfs destroy -r tank/d && zpool sync tank");
    assert_eq!(used, "");
    for mut child in running {
        let _ = child.wait();
    }
    assert_eq!(
        place.run("zpool status -x tank"),
        "pool 'tank' is healthy\n"
    );
    let found = json(&place, "dedup tank");
    assert!(number(&found, "/ratio") > 1.5, "{found}");
    place.kill();
}
