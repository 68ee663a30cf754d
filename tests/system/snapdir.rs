//! `.zfs`: snapshots as directories, through an NFS client library (libnfs) and a FUSE mount; and mounts that show at once
//! what a rollback or an NFS client changed.

use tests::{free_port, skip};

use crate::cli::Place;
use crate::rpc::{Client, GETATTR, LOOKUP, NFS, Xdr};

/// A pool with a snapshot whose files the head no longer has.
fn pool(place: &Place) {
    let made = place.run(
        "mkdir -p $SANBOX_STATE; printf '[mount]\nadmin_snapshots = true\n' > $SANBOX_STATE/sanbox.toml\n\
         truncate -s 256M a && zpool create -O mountpoint=$PWD/m -O sharenfs=rw,no_root_squash tank $PWD/a && \
         echo old > f && sanbox put f tank:/f && sanbox mkdir tank:/d && sanbox put f tank:/d/g && \
         zfs snapshot tank@one && echo new > f && sanbox put f tank:/f && zfs snapshot tank@two && \
         zfs clone -o mountpoint=$PWD/c tank@one tank/clone && zfs snapshot tank/clone@own",
    );
    assert_eq!(made, "");
}

fn lookup(client: &mut Client, dir: &[u8], name: &str) -> Result<Vec<u8>, u32> {
    let arguments = Xdr::default().opaque(dir).opaque(name.as_bytes());
    let answer = client.call(NFS, LOOKUP, &arguments);
    match answer.word(0) {
        0 => Ok(answer.bytes()[8..8 + answer.word(1) as usize].to_vec()),
        status => Err(status),
    }
}

fn serve(place: &mut Place, port: &str) {
    place.serve(&["--nfs-port", port, "--listen", "127.0.0.1", "--no-portmap"]);
}

const STALE: u32 = 70;
const READ_ONLY: u32 = 30;
const NO_ENTRY: u32 = 2;

#[test]
fn snapshots_over_nfs() {
    let mut place = Place::new();
    pool(&place);
    let port = free_port();
    let address = ([127, 0, 0, 1], port).into();
    let port = port.to_string();
    serve(&mut place, &port);
    let mut client = Client::new(address);
    let share = format!("{}/m", place.work());
    let root = client.mount(&share);
    // Hidden, and there by name.
    let control = lookup(&mut client, &root, ".zfs").expect("the control directory");
    let snapshots = lookup(&mut client, &control, "snapshot").expect("snapshots");
    assert!(lookup(&mut client, &control, "shares").is_ok());
    assert_eq!(lookup(&mut client, &control, "other"), Err(NO_ENTRY));
    assert_eq!(lookup(&mut client, &snapshots, "three"), Err(NO_ENTRY));
    assert_eq!(lookup(&mut client, &snapshots, ".."), Ok(control.clone()));
    assert_eq!(lookup(&mut client, &control, ".."), Ok(root.clone()));
    let one = lookup(&mut client, &snapshots, "one").expect("a snapshot");
    assert_eq!(lookup(&mut client, &one, ".."), Ok(snapshots.clone()));
    // No control directory within.
    assert_eq!(lookup(&mut client, &one, ".zfs"), Err(NO_ENTRY));
    let file = lookup(&mut client, &one, "f").expect("its file");
    let dir = lookup(&mut client, &one, "d").expect("its directory");
    let deep = lookup(&mut client, &dir, "g").expect("its file");
    assert_eq!(client.read(&file, 0, 100), Ok(b"old\n".to_vec()));
    assert_eq!(client.write(&file, 0, b"x", 2), READ_ONLY);
    assert_eq!(client.write(&control, 0, b"x", 2), READ_ONLY);
    // Mounted by path.
    assert_eq!(client.mount(&format!("{share}/.zfs/snapshot/one")), one);
    assert_eq!(client.mount(&format!("{share}/.zfs/snapshot/one/d")), dir);
    // A clone's own.
    let clone = client.mount(&format!("{}/c", place.work()));
    let own = lookup(&mut client, &clone, ".zfs").and_then(|c| lookup(&mut client, &c, "snapshot"));
    let own = own.expect("the clone's snapshots");
    assert_eq!(lookup(&mut client, &own, "one"), Err(NO_ENTRY));
    assert!(lookup(&mut client, &own, "own").is_ok());
    // The handle of a snapshot of one share does not open that of another.
    let mut forged = file.clone();
    forged[4..12].copy_from_slice(&clone[4..12]);
    assert_eq!(client.read(&forged, 0, 100), Err(STALE));

    // By a real client library.
    let url = |path: &str| {
        format!("'nfs://127.0.0.1{share}{path}?nfsport={port}&mountport={port}&version=3'")
    };
    let names = |place: &Place, path: &str| {
        let command = format!("nfs-ls {} | awk '{{print $NF}}' | sort | xargs", url(path));
        place.run(&command)
    };
    if place
        .run("command -v nfs-ls && command -v nfs-cat && command -v nfs-cp")
        .lines()
        .count()
        == 3
    {
        assert_eq!(names(&place, "/"), "d f\n");
        assert_eq!(names(&place, "/.zfs"), "shares snapshot\n");
        assert_eq!(names(&place, "/.zfs/snapshot"), "one two\n");
        assert_eq!(names(&place, "/.zfs/snapshot/one"), "d f\n");
        let cat = format!("nfs-cat {}", url("/.zfs/snapshot/one/d/g"));
        assert_eq!(place.run(&cat), "old\n");
        let put = format!("nfs-cp f {} 2>&1", url("/.zfs/snapshot/one/new"));
        assert!(place.run(&put).contains("ROFS"), "{}", place.run(&put));
        assert_eq!(place.run("zfs set snapdir=visible tank"), "");
        assert_eq!(names(&place, "/"), ".zfs d f\n");
        assert_eq!(place.run("zfs set snapdir=disabled tank"), "");
        assert_eq!(lookup(&mut client, &root, ".zfs"), Err(NO_ENTRY));
        assert_eq!(names(&place, "/"), "d f\n");
        assert_eq!(place.run("zfs inherit snapdir tank"), "");
    } else {
        skip("snapshots by libnfs", "libnfs-utils is not installed");
    }

    // Handles survive the server, and the head's changes.
    drop(client);
    place.kill();
    serve(&mut place, &port);
    let mut client = Client::new(address);
    assert_eq!(client.read(&file, 0, 100), Ok(b"old\n".to_vec()));
    assert_eq!(client.read(&deep, 0, 100), Ok(b"old\n".to_vec()));
    assert_eq!(place.run("zfs rename tank@one tank@first"), "");
    assert_eq!(client.read(&file, 0, 100), Ok(b"old\n".to_vec()));
    assert_eq!(lookup(&mut client, &snapshots, "one"), Err(NO_ENTRY));
    assert_eq!(lookup(&mut client, &snapshots, "first"), Ok(one));
    // Destroyed in use.
    let two = lookup(&mut client, &snapshots, "two").expect("a snapshot");
    let gone = lookup(&mut client, &two, "f").expect("its file");
    assert_eq!(client.read(&gone, 0, 100), Ok(b"new\n".to_vec()));
    assert_eq!(place.run("zfs destroy tank@two"), "");
    assert_eq!(client.read(&gone, 0, 100), Err(STALE));
    let arguments = Xdr::default().opaque(&two);
    assert_eq!(client.call(NFS, GETATTR, &arguments).word(0), STALE);

    // Snapshots made, renamed and destroyed as directories.
    let named = |name: &str| Xdr::default().opaque(&snapshots).opaque(name.as_bytes());
    let made = client.call(NFS, MKDIR, &named("made").words(&[0, 0, 0, 0, 0, 0]));
    assert_eq!(made.word(0), 0);
    let again = client.call(NFS, MKDIR, &named("made").words(&[0, 0, 0, 0, 0, 0]));
    assert_eq!(again.word(0), 17);
    assert!(
        place
            .run("zfs list -H -t snapshot -o name -r tank")
            .contains("tank@made\n")
    );
    let both = named("made").opaque(&snapshots).opaque(b"moved");
    assert_eq!(client.call(NFS, RENAME, &both).word(0), 0);
    let made = lookup(&mut client, &snapshots, "moved").expect("the snapshot made");
    assert!(lookup(&mut client, &made, "f").is_ok());
    assert_eq!(client.call(NFS, RMDIR, &named("moved")).word(0), 0);
    assert!(
        !place
            .run("zfs list -H -t snapshot -o name -r tank")
            .contains("moved")
    );
    // A snapshot with a clone stays.
    assert_eq!(client.call(NFS, RMDIR, &named("first")).word(0), 13);
    // The name is taken everywhere else.
    let root_named = Xdr::default().opaque(&root).opaque(b".zfs");
    assert_eq!(client.call(NFS, RMDIR, &root_named).word(0), 17);
    place.stop();
}

const MKDIR: u32 = 9;
const RMDIR: u32 = 13;
const RENAME: u32 = 14;

pub(crate) fn can_mount(place: &Place) -> bool {
    let can = std::path::Path::new("/dev/fuse").exists() && place.run("id -u") == "0\n";
    if !can {
        skip("FUSE mounts", "no /dev/fuse, or not root");
    }
    can
}

#[test]
fn snapshots_in_a_mount() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    pool(&place);
    let port = free_port().to_string();
    serve(&mut place, &port);
    assert_eq!(place.run("zfs mount tank"), "");
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check("ls -A m", "d\nf\n");
    check(
        "ls -A m/.zfs m/.zfs/snapshot",
        "m/.zfs:\nshares\nsnapshot\n\nm/.zfs/snapshot:\none\ntwo\n",
    );
    check(
        "cat m/.zfs/snapshot/one/f m/.zfs/snapshot/two/f m/f",
        "old\nnew\nnew\n",
    );
    check(
        "ls -lA m/.zfs/snapshot/ | wc -l; cat m/.zfs/snapshot/one/d/g",
        "3\nold\n",
    );
    check(
        "find m/.zfs | sort | tail -n 3",
        "m/.zfs/snapshot/two/d\nm/.zfs/snapshot/two/d/g\nm/.zfs/snapshot/two/f\n",
    );
    check("cd m/.zfs/snapshot/one/d && cat ../../two/f", "new\n");
    check(
        "echo x 2>&1 > m/.zfs/snapshot/one/f",
        "sh: 1: cannot create m/.zfs/snapshot/one/f: Read-only file system\n[2]\n",
    );
    check(
        "touch m/.zfs/x 2>&1 | sed 's/.*: //'",
        "Read-only file system\n",
    );
    check(
        "mkdir m/.zfs 2>&1 | sed 's/.*: //'; stat -c '%a %u %F' m/.zfs/snapshot",
        "File exists\n777 0 directory\n",
    );
    check("test m/f -ef m/.zfs/snapshot/one/f", "[1]\n");
    // An open file keeps its snapshot.
    check(
        "exec 3< m/.zfs/snapshot/two/f; zfs destroy tank@two; cat <&3",
        "new\n! cannot destroy snapshot tank@two: dataset is busy\n",
    );
    check(
        // The kernel tells of the last close when it has time.
        "for i in $(seq 600); do zfs destroy tank@two 2>/dev/null && break; sleep 0.1; done; ls m/.zfs/snapshot",
        "one\n",
    );
    check(
        "cat m/.zfs/snapshot/two/f 2>&1 | sed 's/.*: //'",
        "No such file or directory\n",
    );
    // Made, renamed and destroyed.
    check(
        "mkdir m/.zfs/snapshot/three && cat m/.zfs/snapshot/three/f",
        "new\n",
    );
    check(
        "mv m/.zfs/snapshot/three m/.zfs/snapshot/drei && cat m/.zfs/snapshot/drei/f",
        "new\n",
    );
    check(
        "zfs list -H -o name -t snapshot tank",
        "tank@one\ntank@drei\n",
    );
    check(
        "zfs rename tank@drei tank@four && ls m/.zfs/snapshot; test -e m/.zfs/snapshot/drei",
        "four\none\n[1]\n",
    );
    check(
        "rmdir m/.zfs/snapshot/four && zfs list -H -o name -t snapshot tank",
        "tank@one\n",
    );
    check(
        "stat -c %h m; zfs set snapdir=visible tank && ls -A m && sleep 1.2 && stat -c %h m",
        "3\n.zfs\nd\nf\n4\n",
    );
    check(
        "zfs set snapdir=disabled tank && ls -A m; sleep 1.2; test -e m/.zfs",
        "d\nf\n[1]\n",
    );
    check("zfs unmount tank", "");
    place.stop();
}

#[test]
fn mounts_are_never_stale() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    pool(&place);
    let port = free_port();
    let mut connect = None;
    serve(&mut place, &port.to_string());
    assert_eq!(place.run("zfs mount tank"), "");
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    // Names, attributes and pages that the kernel has are gone with a rollback; a file that is open shows what it was.
    for round in 0..3 {
        check(
            "exec 3< m/f; cat <&3; echo newer > m/f; mkdir m/n; echo n > m/n/n; echo more > m/d/g; \
             mv m/d m/e; cat m/e/g m/n/n m/f; zfs rollback tank@two; cat m/f m/d/g; ls -A m; \
             test -e m/n/n || test -e m/e || echo gone; cat /proc/self/fd/3",
            "new\nmore\nn\nnewer\nnew\nold\nd\nf\ngone\nnew\n",
        );
        let mut client = Client::new(([127, 0, 0, 1], port).into());
        let root = client.mount(&format!("{}/m", place.work()));
        let file = lookup(&mut client, &root, "f").expect("a file");
        for i in 0..50u8 {
            let text = [b'a' + i % 26, b'0' + i % 10, b'\n', b'\n'];
            assert_eq!(client.write(&file, 0, &text, 0), 0);
            // Read through one descriptor that stays open, where nothing but a notice empties the kernel's pages.
            let path = place.path("work/m/f");
            let open = connect.get_or_insert_with(|| std::fs::File::open(&path).expect("opens"));
            let mut seen = [0; 4];
            std::os::unix::fs::FileExt::read_exact_at(open, &mut seen, 0).expect("reads");
            assert_eq!(seen, text, "round {round}, write {i}");
        }
        connect = None;
        let dir = lookup(&mut client, &root, "d").expect("a directory");
        check("cat m/d/g", "old\n");
        let named = Xdr::default().opaque(&dir).opaque(b"g");
        assert_eq!(client.call(NFS, 12, &named).word(0), 0);
        check("test -e m/d/g", "[1]\n");
        client.create(&dir, "g2");
        check("ls m/d; rm m/d/g2", "g2\n");
        check("zfs rollback tank@two && cat m/f m/d/g", "new\nold\n");
    }
    // Names of snapshots go with a promotion, a new name and a destruction, and come with them.
    for round in 0..3 {
        check(
            "zfs create -o mountpoint=$PWD/p tank/p && zfs mount tank/p && echo x > p/x && zfs snapshot tank/p@s && \
             zfs clone -o mountpoint=$PWD/q tank/p@s tank/q && zfs mount tank/q && cat p/.zfs/snapshot/s/x; \
             ls q/.zfs/snapshot; zfs promote tank/q; test -e p/.zfs/snapshot/s || echo gone; \
             test -e p/.zfs/snapshot/s/x || echo gone; cat q/.zfs/snapshot/s/x; ls p/.zfs/snapshot",
            "x\ngone\ngone\nx\n",
        );
        check(
            "zfs rename tank/q@s tank/q@t && cat q/.zfs/snapshot/t/x; test -e q/.zfs/snapshot/s || echo gone; \
             zfs destroy tank/p && zfs destroy tank/q@t; test -e q/.zfs/snapshot/t || echo gone; zfs destroy tank/q",
            "x\ngone\ngone\n",
        );
        eprintln!("round {round}");
    }
    check("zfs unmount tank", "");
    place.stop();
}
