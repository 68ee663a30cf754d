//! SSH keys of users: Debian's sshd on a loopback port, asked by OpenSSH's client. Another appliance sends and receives through it with the
//! rights of a user, and nothing else is let through.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tests::{free_port, skip};

use crate::cli::{Place, program, wait_for};
use crate::login::said;

/// A server that runs; ended when dropped.
struct Sshd(Child);

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether sshd runs a program: all directories above it have to be root's (sshd_config(5), AuthorizedKeysCommand).
fn is_trusted(program: &Path) -> bool {
    let own = program.canonicalize().unwrap_or_default();
    own.ancestors().all(|path| {
        let data = std::fs::metadata(path);
        data.is_ok_and(|data| data.uid() == 0 && data.mode() & 0o022 == 0)
    })
}

/// Starts sshd with what 'sanbox ssh-keys setup' prints.
fn sshd(place: &Place, at: &Path, port: u16) -> Sshd {
    said(
        Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", ""])
            .arg("-f")
            .arg(at.join("host")),
    );
    let setup = place.run("sanbox ssh-keys setup");
    assert!(
        setup.contains("AuthorizedKeysCommandUser root\n"),
        "{setup}"
    );
    let configuration = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile none\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin forced-commands-only\nAuthorizedKeysFile none\n{setup}",
        at.join("host").display()
    );
    std::fs::write(at.join("sshd_config"), configuration).expect("written");
    let _ = std::fs::create_dir_all("/run/sshd");
    let log = std::fs::File::create(at.join("sshd.log")).expect("made");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(at.join("sshd_config"));
    let server = Sshd(
        command
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it runs"),
    );
    wait_for("sshd", || {
        std::net::TcpStream::connect(("127.0.0.1", port))
            .map_err(|_| std::fs::read_to_string(at.join("sshd.log")).unwrap_or_default())
    });
    server
}

/// The client's command line for a key.
fn ssh(at: &Path, port: u16, key: &str) -> String {
    format!(
        "ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o IdentitiesOnly=yes -o \
         BatchMode=yes -p {port} -i {}",
        at.join(key).display()
    )
}

struct World {
    here: Place,
    there: Place,
    at: PathBuf,
    port: u16,
    _sshd: Sshd,
}

impl World {
    /// What a host that shows this key is answered.
    fn ask(&self, key: &str, line: &str) -> String {
        let ssh = ssh(&self.at, self.port, key);
        self.there
            .run(&format!("{ssh} root@127.0.0.1 {}", quoted(line)))
    }
}

fn quoted(line: &str) -> String {
    format!("'{}'", line.replace('\'', r"'\''"))
}

fn world() -> Option<World> {
    if !Path::new("/usr/sbin/sshd").exists() {
        skip("SSH keys of users", "openssh-server is not installed");
        return None;
    }
    if !is_trusted(&program()) {
        skip(
            "SSH keys of users",
            "sshd runs no program of a directory that others may write to, or that is not root's",
        );
        return None;
    }
    let (mut here, there) = (Place::new(), Place::new());
    let at = here.path("ssh");
    std::fs::create_dir_all(&at).expect("made");
    for key in ["backup", "operator", "stranger"] {
        said(
            Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", key])
                .arg("-f")
                .arg(at.join(key)),
        );
    }
    let made = here.run(
        "truncate -s 256M a b && zpool create tank $PWD/a && zpool create back $PWD/b && zfs create -o compression=zstd tank/vm && \
         echo one > one && sanbox put one tank/vm:/one && zfs snapshot tank/vm@one",
    );
    assert_eq!(made, "");
    let made = there.run("truncate -s 256M c && zpool create far $PWD/c && zfs create far/own && zfs snapshot far/own@one");
    assert_eq!(made, "");
    here.serve(&[
        "--nfs-port",
        "0",
        "--iscsi-port",
        "0",
        "--metrics-port",
        "0",
        "--https-port",
        "0",
    ]);
    let users = here.run(
        "sanbox user add backup --no-password --role viewer && sanbox user add ops --no-password --role operator && \
         sanbox group add mirrors && sanbox group join mirrors backup",
    );
    assert_eq!(users, "");
    let port = free_port();
    let sshd = sshd(&here, &at, port);
    Some(World {
        here,
        there,
        at,
        port,
        _sshd: sshd,
    })
}

#[test]
fn another_host_replicates_with_the_rights_of_a_user() {
    let Some(world) = world() else {
        return;
    };
    let (here, there) = (&world.here, &world.there);
    // Nobody is let in before a key is known, nor by another one than those.
    let denied = world.ask("backup", "zfs list");
    assert!(
        denied.contains("Permission denied") && denied.ends_with("[255]\n"),
        "{denied}"
    );
    assert_eq!(here.run("sanbox ssh-keys add backup ../ssh/backup.pub && sanbox ssh-keys add ops ../ssh/operator.pub"), "");
    assert!(world.ask("stranger", "zfs list").ends_with("[255]\n"));
    let again = here.run("sanbox ssh-keys add ops ../ssh/backup.pub");
    assert!(again.contains("one of 'backup' already"), "{again}");
    let listed = here.run("sanbox ssh-keys list -H backup");
    let fingerprint = here.run("ssh-keygen -lf ../ssh/backup.pub | cut -d ' ' -f 2");
    assert!(listed.contains(fingerprint.trim()), "{listed}");
    only_replication_is_let_through(&world);
    sent_and_received(&world);
    by_our_own_job(&world);
    by_syncoid(&world);
    // Who gave it, in the log of jobs.
    let jobs = here.run("sanbox job list -H | grep 'zfs receive'");
    assert!(jobs.contains("backup"), "{jobs}");
    // A key that is removed lets nobody in.
    let number = listed.split('\t').next().unwrap_or_default();
    assert_eq!(here.run(&format!("sanbox ssh-keys remove {number}")), "");
    assert!(world.ask("backup", "zfs list").ends_with("[255]\n"));
    // Nor do those of a user who is gone; the daemon alone grants anything.
    assert_eq!(
        here.run("sanbox user delete ops && sanbox authorized-keys root"),
        ""
    );
    let without = there.run("SANBOX_ON_BEHALF_OF=ops zfs list");
    assert!(without.contains("no daemon runs"), "{without}");
}

fn only_replication_is_let_through(world: &World) {
    for line in [
        "",
        "id",
        "sh -c id",
        "zfs list; id",
        "zfs list $(id)",
        "zfs list | id",
        "zfs send tank/vm@one > /tmp/x",
        "zfs destroy tank/vm",
        "zfs set mountpoint=/etc tank/vm",
        "zfs program tank /etc/passwd",
        "zpool export tank",
        "sanbox user list",
    ] {
        let answer = world.ask("operator", line);
        assert!(
            answer.contains("sanbox: ") && answer.ends_with("[126]\n"),
            "{line}: {answer}"
        );
        assert!(!answer.contains("uid="), "{line}: {answer}");
    }
    let ssh = ssh(&world.at, world.port, "operator");
    let forwarded = format!(
        "{ssh} -o ExitOnForwardFailure=yes -W 127.0.0.1:{} root@127.0.0.1 </dev/null",
        world.port
    );
    assert!(!world.there.run(&forwarded).contains("SSH-2.0"));
    // What tools look at beside.
    assert_eq!(world.ask("operator", "echo -n"), "");
    assert_eq!(world.ask("operator", "command -v mbuffer"), "[1]\n");
    let listed = world.ask(
        "operator",
        "zfs list -H -o name tank/vm && echo && zfs get -H -o value type 'tank/vm'; exit 0",
    );
    assert_eq!(listed, "tank/vm\n\nfilesystem\n");
}

fn sent_and_received(world: &World) {
    let (here, there) = (&world.here, &world.there);
    let ssh = ssh(&world.at, world.port, "backup");
    let pull = format!("{ssh} root@127.0.0.1 zfs send -p tank/vm@one | zfs receive -u far/vm");
    let denied = there.run(&pull);
    assert!(denied.contains("permission denied"), "{denied}");
    assert_eq!(here.run("zfs allow -g mirrors send tank/vm"), "");
    assert_eq!(there.run(&pull), "");
    assert_eq!(there.run("sanbox cat far/vm:/one"), "one\n");
    assert_eq!(
        world
            .ask("backup", "zfs send -nP tank/vm@one | grep x")
            .lines()
            .count(),
        2
    );
    let estimate = world.ask("backup", "zfs send -nP tank/vm@one");
    assert!(estimate.contains("size\t"), "{estimate}");
    // Other datasets are not the user's to read, and nothing is to write.
    assert!(world.ask("backup", "zfs send tank@nothing").contains("[1]"));
    let snapshot = world.ask("backup", "zfs snapshot tank/vm@two");
    assert!(snapshot.contains("permission denied"), "{snapshot}");
    let push = |more: &str| {
        format!("zfs send -p far/own@one | {ssh} root@127.0.0.1 zfs receive {more} back/own")
    };
    let denied = there.run(&push("-u"));
    assert!(denied.contains("permission denied"), "{denied}");
    assert_eq!(
        here.run("zfs list -H -o name back/own 2>/dev/null"),
        "[1]\n"
    );
    assert_eq!(
        here.run("zfs allow -g mirrors receive,create,mount back"),
        ""
    );
    // Properties come with the stream as far as the user may set them.
    assert_eq!(
        there.run("zfs set mountpoint=/etc far/own && zfs set compression=gzip far/own"),
        ""
    );
    assert_eq!(here.run("zfs allow -g mirrors compression back"), "");
    let received = there.run(&push("-u"));
    assert!(
        received.contains("cannot receive mountpoint property"),
        "{received}"
    );
    assert_eq!(
        here.run("zfs get -H -o value,source compression,mountpoint back/own"),
        "gzip\treceived\n/back/own\tdefault\n"
    );
    // What is there is given up by those who may roll back alone.
    assert_eq!(
        here.run("echo more > more && sanbox put more back/own:/more"),
        ""
    );
    let increment = format!(
        "zfs snapshot far/own@two && zfs send -i @one far/own@two | {ssh} root@127.0.0.1 zfs receive -F back/own"
    );
    let denied = there.run(&increment);
    assert!(denied.contains("permission denied"), "{denied}");
    assert_eq!(here.run("zfs allow -g mirrors rollback back"), "");
    let again = increment.replace("zfs snapshot far/own@two && ", "");
    assert_eq!(there.run(&again), "");
    assert_eq!(
        here.run("zfs list -H -o name -t snapshot back/own"),
        "back/own@one\nback/own@two\n"
    );
    let destroyed = world.ask("backup", "zfs destroy back/own@one");
    assert!(destroyed.contains("permission denied"), "{destroyed}");
    let key = format!(
        "zfs send far/own@one | {ssh} root@127.0.0.1 \"zfs receive -o encryption=on -o keyformat=raw -o keylocation=file:///etc/shadow back/k\""
    );
    assert!(there.run(&key).contains("not let through"));
}

/// A job of the other appliance, by an operator's key that the job names.
fn by_our_own_job(world: &World) {
    let ssh = ssh(&world.at, world.port, "operator");
    let made = world.there.run(&format!(
        "sanbox replication create pull --from root@127.0.0.1:tank/vm --to far/copy --ssh '{ssh}' && sanbox replication run pull > \
         said 2>&1 || cat said"
    ));
    assert_eq!(made, "");
    assert_eq!(world.there.run("sanbox cat far/copy:/one"), "one\n");
}

fn by_syncoid(world: &World) {
    if !world.there.run("command -v syncoid >/dev/null").is_empty() {
        skip("syncoid over SSH keys", "sanoid is not installed");
        return;
    }
    let allowed = world
        .here
        .run("zfs allow -g mirrors snapshot,destroy,mount,hold tank/vm");
    assert_eq!(allowed, "");
    let at = world.at.display();
    let port = world.port;
    let run = format!(
        "syncoid --no-privilege-elevation --compress=none --quiet --sshport {port} --sshkey {at}/backup --sshoption=StrictHostKeyChecking=no \
         --sshoption=UserKnownHostsFile=/dev/null --sshoption=LogLevel=ERROR --sshoption=IdentitiesOnly=yes"
    );
    let pulled = world.there.run(&format!(
        "{run} root@127.0.0.1:tank/vm far/synced > said 2>&1 || cat said"
    ));
    assert_eq!(pulled, "");
    assert_eq!(world.there.run("sanbox cat far/synced:/one"), "one\n");
    let pushed = world.there.run(&format!(
        "{run} far/own root@127.0.0.1:back/synced > said 2>&1 || cat said"
    ));
    assert_eq!(pushed, "");
}
