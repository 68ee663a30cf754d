//! The tour that `make run` gives (`scripts/run`): it comes up, its share can be used from a client, ^C ends it with
//! everything it started, it goes on where it was, and the disks are a whole pool.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus};

use crate::cli::{Place, program, wait_for};

struct Tour {
    place: Place,
    port: u16,
}

/// A tour under way; dropped, it ends as hard as can be.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Tour {
    /// Starts the tour in a process group of its own, as a terminal would, and waits for its last words.
    fn start(&self) -> Running {
        let said = self.place.path("said");
        let out = File::create(&said).expect("a file");
        let mut command = self.place.command("bash");
        command
            .arg(tests::root().join("scripts/run"))
            .env("SANBOX", program())
            .env("SANBOX_TOUR", self.place.path("tour"))
            .env("NFS_PORT", self.port.to_string())
            .stderr(out.try_clone().expect("a file"))
            .stdout(out)
            .process_group(0);
        let running = Running(command.spawn().expect("the tour starts"));
        let text = wait_for("the tour", || {
            let text = std::fs::read_to_string(&said).unwrap_or_default();
            let is_over = text.contains("^C ends the appliance");
            if is_over { Ok(text) } else { Err(text) }
        });
        assert!(text.contains("mount -t nfs"), "{text}");
        running
    }

    /// ^C: every process of the group is told. Returns how the tour ended.
    fn interrupt(&self, mut running: Running) -> ExitStatus {
        let group = running.0.id();
        let told = self.place.run(&format!("env kill -INT -- -{group}"));
        assert_eq!(told, "");
        let status = running.0.wait().expect("its end");
        assert_eq!(self.place.run(&format!("pgrep -g {group}")), "[1]\n");
        status
    }
}

#[test]
fn the_tour_of_make_run() {
    let port = tests::free_port();
    let tour = Tour {
        place: Place::new(),
        port,
    };
    let own = "cd ../tour && export SANBOX_STATE=$PWD/state";
    for round in 0..2 {
        let running = tour.start();
        let status = tour.place.run(&format!("{own} && zpool status -x"));
        assert_eq!(status, "all pools are healthy\n");
        if tour.place.run("command -v nfs-cp >/dev/null").is_empty() {
            let url = |path: &str| {
                format!(
                    "'nfs://127.0.0.1/tank/share{path}?nfsport={port}&mountport={port}&version=3'"
                )
            };
            let script = format!(
                "head -c 2000000 /dev/urandom >sent{round} && nfs-cp sent{round} {} >/dev/null && \
                 nfs-cat {} | cmp - sent0 && nfs-ls {}",
                url(&format!("/sent{round}")),
                url("/sent0"),
                url("")
            );
            let listed = tour.place.run(&script);
            for name in ["README", &format!("sent{round}")] {
                assert!(listed.contains(name), "{listed}");
            }
        } else {
            tests::skip("a client's look at the tour", "nfs-cp is not installed");
        }
        let status = tour.interrupt(running);
        assert!(status.success(), "round {round}: ^C ended it with {status}");
    }
    let exported = tour.place.run(&format!("{own} && zpool export tank"));
    assert_eq!(exported, "");
    if tests::oracle::has_zdb() {
        let disks = tour.place.path("tour/disks");
        tests::oracle::zdb_clean(&disks, "tank").expect("zdb finds nothing");
    }
}
