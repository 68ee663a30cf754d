//! Goal: volumes served by NBD work with other people's clients. Method: a daemon, and libnbd's nbdinfo and nbdcopy, qemu-img and fio
//! against it; what they wrote is read back through another door, and zdb judges the pool.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::cli::Place;

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        tests::skip("an NBD client", &format!("{tool} is not installed"));
    }
    found
}

/// A daemon with a pool of volumes.
fn serve() -> Place {
    let mut place = Place::new();
    let made = place.run(
        "truncate -s 256M a b && zpool create tank mirror $PWD/a $PWD/b && zfs create -V 32M tank/v && \
         zfs create -s -b 4K -V 64M tank/sparse 2>/dev/null",
    );
    assert_eq!(made, "");
    place.serve(&["--nfs-port", "0", "--nbd-port", "0"]);
    place
}

const URI: &str = "nbd+unix:///tank/v?socket=$SANBOX_STATE/nbd.sock";

#[test]
fn libnbd_and_qemu_agree_on_what_is_there() {
    if !(has("nbdinfo") && has("nbdcopy") && has("qemu-img")) {
        return;
    }
    let mut place = serve();
    let sparse = "nbd+unix:///tank/sparse?socket=$SANBOX_STATE/nbd.sock";
    let info = place.run(&format!("nbdinfo '{URI}'").replace('\'', "\""));
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 33554432",
        "base:allocation",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
    ] {
        assert!(info.contains(line), "{line} is missing:\n{info}");
    }
    let listed =
        place.run("nbdinfo --list \"nbd+unix:///?socket=$SANBOX_STATE/nbd.sock\" | grep export=");
    assert!(
        listed.contains("tank/v") && listed.contains("tank/sparse"),
        "{listed}"
    );
    // In and out again, and the map of what is allocated.
    let copied = place.run(&format!(
        "head -c 20000000 /dev/urandom > f; truncate -s 32M f; nbdcopy f \"{URI}\" && nbdcopy --flush \"{URI}\" g && cmp f g"
    ));
    assert_eq!(copied, "");
    let empty = place.run(&format!(
        "nbdinfo --map \"{sparse}\" | awk '{{print $1, $2, $3}}'"
    ));
    assert_eq!(empty, "0 67108864 3\n");
    let written = place.run(&format!(
        "qemu-img convert -f raw -O raw -n f \"{sparse}\" && qemu-img compare -f raw -F raw f \"{sparse}\""
    ));
    assert!(written.contains("Images are identical"), "{written}");
    let map = place.run(&format!("nbdinfo --map --totals \"{sparse}\""));
    assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
    // Wrong names and read-only volumes are refused politely.
    let missing = place.run("nbdinfo \"nbd+unix:///tank/none?socket=$SANBOX_STATE/nbd.sock\"");
    assert!(
        missing.contains("server replied with error to opt_go"),
        "{missing}"
    );
    assert_eq!(place.run("zfs set readonly=on tank/v"), "");
    let info = place.run(&format!("nbdinfo \"{URI}\""));
    assert!(info.contains("is_read_only: true"), "{info}");
    assert_eq!(place.run("zfs set readonly=off tank/v"), "");
    // Killed in the middle of nothing: what was flushed is there.
    place.kill();
    place.serve(&["--nfs-port", "0", "--nbd-port", "0"]);
    assert_eq!(place.run(&format!("nbdcopy \"{URI}\" g && cmp f g")), "");
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
    if tests::oracle::has_zdb() {
        tests::oracle::zdb_clean(&place.path("work"), "tank").expect("zdb finds nothing");
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") {
        return;
    }
    let mut place = serve();
    let run = place.run(
        "fio --name=v --ioengine=nbd --uri=\"nbd+unix:///tank/sparse?socket=$SANBOX_STATE/nbd.sock\" --rw=randwrite \
         --bsrange=512-128k --blockalign=512 --size=48M --io_size=24M --iodepth=16 --verify=crc32c --randseed=7 --fsync=200 \
         --output-format=terse --minimal 2>&1 | head -c 200",
    );
    if run.contains("engine nbd not loadable") {
        tests::skip("fio over NBD", "this fio has no nbd engine");
    } else {
        assert!(run.contains("3;fio-"), "{run}");
        assert!(!run.contains("verify") && !run.contains("error"), "{run}");
    }
    place.stop();
    assert_eq!(place.run("zpool export tank"), "");
}

#[test]
fn nonsense_ends_the_connection_only() {
    let mut place = serve();
    for bytes in [
        &[0xff; 4096][..],
        // Flags, then an option that claims four gigabytes.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        // GO with a name longer than its data.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x08\0\0\xff\xff\0\0\0\0",
        // SET_META_CONTEXT with four billion queries.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x0a\0\0\0\x0c\0\0\0\x04tank\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x00",
        b"",
    ] {
        let mut stream = UnixStream::connect(place.path("state/nbd.sock")).expect("connects");
        stream.write_all(bytes).expect("sent");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("half closed");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(b"NBDMAGIC"), "the greeting came first");
    }
    // The TCP port opens for volumes that say so, and closes again.
    place.stop();
    let port = tests::free_port();
    place.serve(&["--nfs-port", "0", "--nbd-port", &port.to_string()]);
    let connects = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(!connects(), "nothing is offered");
    assert_eq!(place.run("zfs set org.sanbox:nbd=readonly tank/v"), "");
    assert!(connects(), "one volume is offered");
    if has("nbdinfo") {
        let info = place.run(&format!("nbdinfo nbd://127.0.0.1:{port}/tank/v"));
        assert!(info.contains("is_read_only: true"), "{info}");
        let hidden = place.run(&format!("nbdinfo nbd://127.0.0.1:{port}/tank/sparse"));
        assert!(
            hidden.contains("server replied with error to opt_go"),
            "{hidden}"
        );
    }
    assert_eq!(place.run("zfs inherit org.sanbox:nbd tank/v"), "");
    assert!(!connects(), "nothing is offered any more");
    place.stop();
}
