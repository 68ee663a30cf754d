//! Command lines without sense, by the hundred: commands, options and words thrown together. None may end in anything but
//! success, a refusal or its usage (0, 1, 2), with the daemon that carries them out in good health afterwards.
//!
//! Only words that cannot reach anything outside the test's own directory are in the hat.

use crate::cli::Place;

const COMMANDS: &[&str] = &[
    "zpool list",
    "zpool status",
    "zpool get",
    "zpool set",
    "zpool create -n",
    "zpool create",
    "zpool export",
    "zpool destroy",
    "zpool history",
    "zpool sync",
    "zpool import -d $PWD",
    "zpool help",
    "zpool",
    "zfs list",
    "zfs get",
    "zfs set",
    "zfs inherit",
    "zfs create",
    "zfs rename",
    "zfs destroy",
    "zfs help",
    "zfs",
    "sanbox ls",
    "sanbox cat",
    "sanbox get",
    "sanbox put",
    "sanbox rm",
    "sanbox mkdir",
];

const WORDS: &[&str] = &[
    "tank",
    "tank/fs",
    "tank/fs/sub",
    "tank/new",
    "other",
    "a",
    "b",
    "c",
    "d",
    "mirror",
    "raidz1",
    "draid2:4d:1s",
    "log",
    "cache",
    "special",
    "spare",
    "tank@snap",
    "tank/fs@a%b",
    "@",
    "/",
    "//",
    "tank/",
    "/tank",
    "tank//fs",
    "tank/fs#mark",
    "all",
    "name,used",
    "compression=lz4",
    "compression=nonsense",
    "recordsize=3",
    "recordsize=1M",
    "quota=1.5G",
    "quota=-1",
    "=",
    "a=b",
    "org.example:x=y",
    "ashift=12",
    "ashift=99",
    "feature@none=enabled",
    "'sharenfs=rw=('",
    "tank/fs:/",
    "tank/fs:/x",
    "tank/fs:/../x",
    ":",
    ":/",
    "f",
    "''",
    "' '",
    "'tank fs'",
    "\u{e9}",
    "-",
    "--",
    "-H",
    "-p",
    "-j",
    "-r",
    "-R",
    "-f",
    "-o",
    "-O",
    "-d",
    "-t",
    "-Hpo",
    "name",
    "--json-int",
    "--nope",
    "--",
    "-z",
    "-\\?",
    "18446744073709551616",
    "$LONG",
];

struct Hat(u64);

impl Hat {
    fn draw(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).expect("31 bits") % bound
    }
}

#[test]
fn command_lines_without_sense() {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 128M a b c d && echo content > f && zpool create tank $PWD/a && zfs create tank/fs",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0"]);
    let mut hat = Hat(0x5eed);
    // A word longer than any name may be.
    let mut script = "LONG=$(printf '%05000d' 0)\n".to_owned();
    let mut lines = vec![];
    for _ in 0..400 {
        let mut line = hat.draw(COMMANDS).to_owned();
        for _ in 0..hat.below(6) {
            line.push(' ');
            line.push_str(hat.draw(WORDS));
        }
        script.push_str(&format!(
            "timeout -k 1 60 {line} </dev/null >out 2>&1; echo $?\n"
        ));
        lines.push(line);
    }
    std::fs::write(place.path("script"), script).expect("a script");
    let output = place.run(&format!("sh {}", place.path("script").display()));
    let codes: Vec<&str> = output.lines().collect();
    let last = lines.get(codes.len().saturating_sub(1));
    assert_eq!(codes.len(), lines.len(), "{last:?}: {output}");
    for (line, code) in lines.iter().zip(codes) {
        assert!(["0", "1", "2"].contains(&code), "{line}: exit code {code}");
    }
    let log = place.log();
    assert!(!log.contains("panicked"), "{log}");
    let listed = place.run("zpool list -H -o name >/dev/null");
    assert_eq!(listed, "");
    place.stop();
}
