//! A disk of the state directory that is full, and one that takes nothing any more: what is served goes on, and it is said what is not kept.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde_json::json;
use tests::{free_port, skip};

use crate::cli::Place;
use crate::console::{PASSWORD, browser, owner, serve_with};
use crate::rpc::Client;

/// A small file system in memory; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mounted_at(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).expect("made");
        mount(
            "small",
            at,
            "tmpfs",
            MountFlags::empty(),
            c"size=8m,mode=0700",
        )
        .ok()?;
        Some(Self(at.to_owned()))
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let to = format!("of={}/fill", self.0.display());
        let status = Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "status=none", &to])
            .output();
        assert!(!status.expect("dd runs").status.success(), "it has an end");
    }

    /// Has it take nothing any more, as a kernel does with one that has errors.
    fn stop_writes(&self) {
        mount_remount(&self.0, MountFlags::RDONLY, c"").expect("remounted");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn pools_are_served_while_the_state_directory_takes_nothing() {
    let mut place = Place::new();
    let Some(disk) = SmallDisk::mounted_at(&place.path("state")) else {
        skip("a state directory that is full", "only root mounts a disk");
        return;
    };
    let made = place.run(
        "truncate -s 256M a && zpool create -O mountpoint=none tank $PWD/a && \
         zfs create -o mountpoint=/tank/fs -o sharenfs=rw,no_root_squash tank/fs && \
         echo kept > note && sanbox put note tank/fs:/note",
    );
    assert_eq!(made, "");
    let nfs = free_port();
    let nfs_text = nfs.to_string();
    let flags = [
        "--listen",
        "127.0.0.1",
        "--no-portmap",
        "--nfs-port",
        &nfs_text,
    ];
    let address = SocketAddr::from(([127, 0, 0, 1], nfs));
    let content = "/api/v1/files/content?dataset=tank/fs&path=/note";
    let port = serve_with(&mut place, &flags);
    {
        let ann = owner(&place, port);
        disk.fill();
        assert_eq!(
            place.run("zfs create tank/more && zfs snapshot tank/more@a"),
            ""
        );
        let command = json!({"tool": "zfs", "arguments": ["snapshot", "tank/more@b"]});
        let (status, said) = ann.ask("POST", "/api/v1/commands", Some(&command));
        assert_eq!(status, 202, "{said}");
        works(address, "full");
        assert_eq!(ann.get("/api/v1/pools")[0]["health"], "ONLINE");
        place.run("sanbox checks run state-directory");
        let alerts = ann.get("/api/v1/alerts").to_string();
        assert!(
            alerts.contains("The state directory cannot be written"),
            "{alerts}"
        );
    }
    place.stop();
    disk.stop_writes();
    let port = serve_with(&mut place, &flags);
    works(address, "read-only");
    let log = place.log();
    for said in [
        "users cannot be changed",
        "no commands are taken from shells",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    let mut ann = browser(&place, port);
    let known = json!({"name": "ann", "password": PASSWORD});
    let (status, session) = ann.ask("POST", "/api/v1/session", Some(&known));
    assert_eq!(status, 201, "{session}");
    ann.csrf = session["csrf"].as_str().expect("a value").to_owned();
    let (status, _) = ann.ask("GET", content, None);
    assert_eq!(status, 200);
    drop(ann);
    place.stop();
    drop(disk);
}

/// A client of NFS gets its work done.
fn works(address: SocketAddr, name: &str) {
    let mut client = Client::new(address);
    let root = client.mount("/tank/fs");
    let file = client.create(&root, name);
    assert_eq!(client.write(&file, 0, name.as_bytes(), 2), 0, "{name}");
    assert_eq!(client.read(&file, 0, 100), Ok(name.as_bytes().to_vec()));
}
