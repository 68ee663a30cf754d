//! The command line at its boundary, as data: a line, its exit code and what it prints first, on a pool of two files that one
//! process makes, changes and destroys. What whole texts look like is in `tests/cli`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::Engine;
use manage::config::Config;
use manage::state::StateDirectory;
use tokio::sync::mpsc;

use super::out::{Out, Stream};
use super::{Caller, Session};
use crate::appliance::Appliance;

/// Command lines in order, `DIR` for the folder of the devices: exit code, first line of standard output, of standard error.
// The texts of 'zpool' and 'zfs' are OpenZFS's: lib/libzfs/libzfs_util.c, cmd/zpool/zpool_main.c, cmd/zfs/zfs_main.c
const LINES: &[(&str, u8, &str, &str)] = &[
    ("zpool list", 0, "", "no pools available"),
    ("zfs list", 0, "", "no datasets available"),
    ("zpool create tank mirror DIR/a DIR/b", 0, "", ""),
    (
        "zpool create tank DIR/a",
        1,
        "",
        "cannot create 'tank': pool already exists",
    ),
    ("zpool list -H -o name,health", 0, "tank\tONLINE", ""),
    ("zpool status -x", 0, "all pools are healthy", ""),
    ("zfs create tank/a", 0, "", ""),
    (
        "zfs create tank/a",
        1,
        "",
        "cannot create 'tank/a': dataset already exists",
    ),
    (
        "zfs create tank/no/b",
        1,
        "",
        "cannot create 'tank/no/b': parent does not exist",
    ),
    ("zfs set compression=lz4 tank/a", 0, "", ""),
    (
        "zfs get -H -o value,source compression tank/a",
        0,
        "lz4\tlocal",
        "",
    ),
    ("zfs inherit compression tank/a", 0, "", ""),
    (
        "zfs get -H -o value,source compression tank/a",
        0,
        "on\tdefault",
        "",
    ),
    (
        "zfs get -H nonsense tank",
        2,
        "",
        "bad property list: invalid property 'nonsense'",
    ),
    ("zfs snapshot tank/a@s", 0, "", ""),
    (
        "zfs snapshot tank/a@s",
        1,
        "",
        "cannot create snapshot 'tank/a@s': dataset already exists",
    ),
    ("zfs list -H -t snapshot -o name", 0, "tank/a@s", ""),
    (
        "zfs destroy tank/a",
        1,
        "",
        "cannot destroy 'tank/a': filesystem has children",
    ),
    ("zfs destroy -r tank/a", 0, "", ""),
    (
        "zfs list tank/a",
        1,
        "",
        "cannot open 'tank/a': dataset does not exist",
    ),
    (
        "zfs rename tank/x tank/y",
        1,
        "",
        "cannot open 'tank/x': dataset does not exist",
    ),
    ("zpool get -H -o value autotrim tank", 0, "off", ""),
    (
        "zpool set autotrim=maybe tank",
        1,
        "",
        "cannot set property for 'tank': 'autotrim' must be one of 'on | off'",
    ),
    ("zpool set autotrim=on tank", 0, "", ""),
    (
        "zpool get -H -o value,source autotrim tank",
        0,
        "on\tlocal",
        "",
    ),
    (
        "zpool scrub other",
        1,
        "",
        "cannot open 'other': no such pool",
    ),
    (
        "zpool offline tank none",
        1,
        "",
        "cannot offline none: no such device in pool",
    ),
    ("zpool nonsense", 2, "", "unrecognized command 'nonsense'"),
    ("zfs", 2, "", "missing command"),
    ("zfs create", 2, "", "missing filesystem argument"),
    (
        "sanbox nonsense",
        2,
        "",
        "sanbox: unknown command 'nonsense'",
    ),
    ("sanbox ls", 2, "", "missing place argument"),
    ("zpool destroy tank", 0, "", ""),
    (
        "zpool destroy tank",
        1,
        "",
        "cannot open 'tank': no such pool",
    ),
];

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("sanbox-cli-{}", std::process::id()));
        std::fs::create_dir_all(path.join("state")).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a line as the daemon does. Returns its exit code and the first lines of both streams.
async fn run(appliance: &Arc<Appliance>, folder: &Path, line: &str) -> (u8, String, String) {
    let line = line.replace("DIR", &folder.to_string_lossy());
    let mut words = line.split(' ').map(str::to_owned);
    let tool = words.next().expect("a tool");
    let arguments: Vec<String> = words.collect();
    let (sender, mut output) = mpsc::channel(64);
    let caller = Caller::default();
    let session = Session::new(
        appliance.clone(),
        Out::channel(sender, None),
        caller,
        &tool,
        &arguments,
        None,
    );
    let gathered = async {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some((stream, bytes)) = output.recv().await {
            match stream {
                Stream::Out => out.extend(bytes),
                Stream::Err => err.extend(bytes),
                Stream::Title => {}
            }
        }
        [out, err].map(|bytes| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            text.lines().next().unwrap_or_default().to_owned()
        })
    };
    let (exit, [out, err]) = tokio::join!(super::run(session, &tool, &arguments), gathered);
    (exit.0, out, err)
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_have_exit_codes_and_answers() {
    let folder = Folder::new();
    for name in ["a", "b"] {
        let file = std::fs::File::create(folder.0.join(name)).expect("a file");
        file.set_len(128 << 20).expect("its size");
    }
    let state = StateDirectory::open(&folder.0.join("state")).expect("a state directory");
    let engine = Engine::new(engine::Threads::default());
    let appliance = Appliance::new(engine, state, Config::default()).expect("an appliance");
    for &(line, exit, out, err) in LINES {
        let answer = run(&appliance, &folder.0, line).await;
        assert_eq!(answer, (exit, out.to_owned(), err.to_owned()), "{line}");
    }
    appliance.close().await.expect("a close");
}
