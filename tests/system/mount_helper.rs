//! `mount -t zfs` by the helper that mount(8) calls, for file systems with `mountpoint=legacy` and for snapshots.

use std::path::Path;

use crate::cli::Place;
use crate::snapdir::can_mount;

/// Begins a line with a function `mnt` that calls mount(8) where `/sbin/mount.zfs` is this program, for that call alone; without such a file,
/// which the link needs to be laid over, the helper itself as mount(8) calls it.
fn with_helper(line: &str) -> String {
    let mount = if Path::new("/sbin/mount.zfs").exists() {
        "unshare -m --propagation slave sh -c 'mount --bind $(command -v mount.zfs) /sbin/mount.zfs && exec mount -t zfs \"$@\"' mount \"$@\""
    } else {
        "mount.zfs \"$@\""
    };
    format!("mnt() {{ {mount}; }}; {line}")
}

#[test]
fn mount_mounts_legacy_file_systems_and_snapshots() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    let program = place.path("bin/sanbox");
    std::os::unix::fs::symlink(program, place.path("bin/mount.zfs")).expect("a link");
    place.serve(&["--nfs-port", "0"]);
    let check =
        |line: &str, expect: &str| assert_eq!(place.run(&with_helper(line)), expect, "{line}");
    check(
        "truncate -s 128M a && zpool create -O mountpoint=none tank $PWD/a && zfs create -o mountpoint=legacy tank/www && \
         zfs create -o mountpoint=$PWD/own tank/own && mkdir www snap",
        "",
    );
    check(
        "mnt tank/www $PWD/www && echo one >www/f && zfs mount | grep -c tank/www && zfs get -H -o value mounted tank/www",
        "1\nyes\n",
    );
    check(
        "zfs snapshot tank/www@s && echo two >www/f && umount www",
        "",
    );
    check("zfs mount; zfs get -H -o value mounted tank/www", "no\n");
    // Options hold for the mount, as with 'zfs mount -o'.
    check(
        "mnt -o ro,noexec tank/www $PWD/www && cat www/f && { echo x >www/f; } 2>/dev/null || zfs get -H -o value,source readonly,exec tank/www",
        "two\non\ttemporary\noff\ttemporary\n",
    );
    check(
        "mnt tank/www@s $PWD/snap && cat snap/f && umount snap",
        "one\n",
    );
    // At another place it is the same mount, which goes with the first one.
    check(
        "mnt tank/www $PWD/snap && cat snap/f && zfs mount | grep -c www && zfs set mountpoint=$PWD/www tank/www && \
         zfs unmount tank/www && ls www snap && \
         zfs set mountpoint=legacy tank/www && mnt -o ro tank/www $PWD/www",
        "two\n1\nsnap:\n\nwww:\n",
    );
    check(
        "mnt tank/www $PWD/www 2>&1; echo $?",
        "filesystem 'tank/www' is already mounted\n32\n",
    );
    check(
        "umount www && zfs mount; zfs get -H -o value,source readonly tank/www",
        "off\tdefault\n",
    );
    place.stop();
}

#[test]
fn what_the_helper_cannot_mount_it_says() {
    let mut place = Place::new();
    if !can_mount(&place) {
        return;
    }
    place.serve(&["--nfs-port", "0"]);
    let check = |line: &str, expect: &str| assert_eq!(place.run(line), expect, "{line}");
    check(
        "truncate -s 128M a && zpool create -O mountpoint=none tank $PWD/a && zfs create -o mountpoint=legacy tank/www && \
         zfs create -o mountpoint=$PWD/own tank/own && zfs create -V 1M tank/vol && mkdir www",
        "",
    );
    check(
        "sanbox mount.zfs tank/own $PWD/www 2>&1; echo $?",
        "filesystem 'tank/own' cannot be mounted using 'mount'.\n\
         Use 'zfs set mountpoint=legacy' or 'zfs mount tank/own'.\nSee zfs(8) for more information.\n1\n",
    );
    check(
        "sanbox mount.zfs tank/www $PWD/www -o zfsutil 2>&1 | head -n 1",
        "filesystem 'tank/www' cannot be mounted using 'zfs mount'.\n",
    );
    check(
        "sanbox mount.zfs tank/vol $PWD/www 2>&1; sanbox mount.zfs tank/nope $PWD/www 2>&1 | tail -n 1; \
         sanbox mount.zfs tank/www $PWD/nope 2>&1 | grep -c 'canonicalization error'",
        "filesystem 'tank/vol' cannot be mounted: it is a volume\n\
         filesystem 'tank/nope' cannot be mounted, unable to open the dataset\n1\n",
    );
    check(
        "sanbox mount.zfs tank/www $PWD/www -o ro,wrong 2>&1 | head -n 1; sanbox mount.zfs -s tank/www $PWD/www -o ro,wrong,x-systemd.automount && \
         zfs get -H -o value readonly tank/www && umount www",
        "filesystem 'tank/www' cannot be mounted due to invalid option 'wrong'.\non\n",
    );
    check(
        "sanbox mount.zfs -fv tank/www $PWD/www | head -n 2; zfs mount",
        "mount.zfs:\n  dataset:    \"tank/www\"\n",
    );
    place.stop();
}
