//! Every call, with names inside and outside of what a peer was invited to.

use codec::checksum;
use codec::compress::{self, Algorithm};
use engine::NvList;

use super::Peer;
use super::identity::Fingerprint;
use super::message::{Request, WireFrom, WireReceive, WireStream};
use super::rights::{NAMES_MAX, check, excluded};

/// A snapshot of a job, without the dataset's name.
const OWN: &str = "replica-vm-20261128T010203.004Z";
/// A bookmark of a job, likewise.
const MARKED: &str = "replica-vm-00000000000000ff";

fn peer(push: bool, pull: bool) -> Peer {
    Peer {
        name: "box".to_owned(),
        certificate: Fingerprint::of(b"box"),
        address: String::new(),
        datasets: vec!["tank/vm".to_owned(), "back/x".to_owned()],
        push,
        pull,
        failover: false,
    }
}

fn stream(dataset: &str, snapshot: &str, from: Option<WireFrom>) -> WireStream {
    WireStream {
        dataset: dataset.to_owned(),
        snapshot: snapshot.to_owned(),
        from,
        token: None,
        properties: true,
        raw: false,
        compress: None,
    }
}

fn into(dataset: &str, set: &[(&str, &str)]) -> Request {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Request::Receive {
        into: WireReceive {
            dataset: dataset.to_owned(),
            set: set.iter().map(own).collect(),
            excluded: Vec::new(),
        },
    }
}

/// A resume token, as `receive_resume_token` shows it.
fn packed(list: &NvList) -> String {
    let list = list.encode_native();
    let packed = compress::compress(Algorithm::Gzip(6), &list, 4096).expect("it fits");
    let words = &packed[..packed.len() / 4 * 4];
    let sum = checksum::compute(checksum::Algorithm::Fletcher4, &[0; 32], words)[0];
    let hex = crate::secret::hex(&packed);
    format!("1-{sum:x}-{:x}-{hex}", list.len())
}

/// Each call with a dataset's name in each place that holds one: what is true of one is true of all.
fn calls(dataset: &str) -> Vec<Request> {
    let name = || dataset.to_owned();
    let full = |mark: char, short: &str| format!("{dataset}{mark}{short}");
    let tag = || "replica-vm".to_owned();
    let good = "tank/vm";
    let pair =
        |bookmark: &str, snapshot: &str| (format!("{bookmark}#{MARKED}"), format!("{snapshot}@s"));
    vec![
        Request::List { root: name() },
        Request::WriteOut { root: name() },
        Request::UnchangedSince { root: name() },
        Request::Exists { dataset: name() },
        Request::Find {
            dataset: name(),
            guid: 7,
        },
        Request::Snapshot {
            names: vec![full('@', OWN)],
        },
        Request::Size {
            stream: stream(dataset, "s", None),
        },
        Request::Send {
            stream: stream(dataset, "s", Some(WireFrom::Bookmark("b".to_owned()))),
        },
        into(dataset, &[]),
        Request::DiscardInterrupted { dataset: name() },
        Request::Bookmark {
            pairs: vec![pair(good, good), pair(dataset, dataset)],
        },
        Request::DestroyBookmarks {
            names: vec![full('#', MARKED)],
        },
        Request::DestroySnapshots {
            names: vec![format!("{good}@{OWN}"), full('@', OWN)],
        },
        Request::Hold {
            names: vec![full('@', "s")],
            tag: tag(),
        },
        Request::Release {
            names: vec![full('@', "s")],
            tag: tag(),
        },
        Request::Set {
            dataset: name(),
            name: "readonly".to_owned(),
            value: "on".to_owned(),
        },
        Request::Rollback {
            dataset: name(),
            snapshot: "s".to_owned(),
            newer: vec!["t".to_owned()],
        },
        Request::Inherit {
            dataset: name(),
            name: "readonly".to_owned(),
            received: true,
        },
        Request::CloneSnapshot {
            snapshot: full('@', "s"),
            name: format!("{good}-test"),
            mark: "vm:0000000000000000".to_owned(),
        },
        Request::CloneSnapshot {
            snapshot: format!("{good}@s"),
            name: name(),
            mark: "vm:0000000000000000".to_owned(),
        },
        Request::Destroy { dataset: name() },
        Request::ReplayLogs { root: name() },
    ]
}

#[test]
fn each_call_is_for_the_datasets_that_a_peer_was_invited_to() {
    let peer = peer(true, true);
    for dataset in ["tank/vm", "tank/vm/one/two"] {
        for call in calls(dataset) {
            // The clone of a test lies beside its root.
            let beside =
                matches!(&call, Request::CloneSnapshot { name, .. } if name == "tank/vm-test");
            let checked = check(&peer, &call);
            assert_eq!(checked.is_ok(), !beside, "{call:?}: {checked:?}");
            if let Ok(allowed) = checked {
                assert_eq!(allowed.pool, "tank", "{call:?}");
            }
        }
    }
    for dataset in [
        "tank/vmware",
        "tank/other",
        "other/tank/vm",
        "back",
        "",
        "/",
        "tank/vm/",
        "tank//vm",
        "/tank/vm",
        "tank/vm/..",
        "tank/vm/../other",
        "tank/vm@s",
        "tank/vm#b",
        "tank/vm\0",
        "tank/vm\n",
        "tank/vm%",
        "tank/vm/*",
        "-r",
    ] {
        for call in calls(dataset) {
            // What a root lies in: whether it exists.
            let above = dataset == "back" && matches!(call, Request::Exists { .. });
            assert_eq!(check(&peer, &call).is_ok(), above, "{call:?}");
        }
    }
    // A name of any length is told in a few letters.
    let long = "x".repeat(100_000);
    for call in calls(&format!("tank/vm/{long}")) {
        let why = check(&peer, &call).expect_err("too long");
        assert!(why.len() < 300, "{why}");
    }
}

#[test]
fn rights_are_those_of_the_invitation() {
    let [push, pull, both, none] =
        [(true, false), (false, true), (true, true), (false, false)].map(|(s, t)| peer(s, t));
    for call in calls("tank/vm/one") {
        if matches!(&call, Request::CloneSnapshot { name, .. } if name == "tank/vm-test") {
            continue;
        }
        assert!(check(&both, &call).is_ok(), "{call:?}");
        assert!(check(&none, &call).is_err(), "{call:?}");
        let (may_push, may_pull) = (check(&push, &call).is_ok(), check(&pull, &call).is_ok());
        let either = matches!(
            call,
            Request::List { .. }
                | Request::Exists { .. }
                | Request::DestroySnapshots { .. }
                | Request::Hold { .. }
                | Request::Release { .. }
        );
        assert_eq!(may_push && may_pull, either, "{call:?}");
        assert!(may_push || may_pull, "{call:?}");
        let sends = matches!(call, Request::Receive { .. } | Request::Rollback { .. });
        assert!(!sends || may_push && !may_pull, "{call:?}");
        let takes = matches!(call, Request::Send { .. } | Request::Snapshot { .. });
        assert!(!takes || may_pull && !may_push, "{call:?}");
    }
    let again = Request::Pair {
        id: String::new(),
        proof: String::new(),
        name: String::new(),
    };
    assert!(check(&both, &again).is_err());
}

#[test]
fn a_peer_makes_and_destroys_what_jobs_do() {
    let both = peer(true, true);
    let snapshots = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let refused = [
        Request::Snapshot {
            names: snapshots(&["tank/vm@mine"]),
        },
        Request::Snapshot { names: Vec::new() },
        Request::Snapshot {
            names: vec![format!("tank/vm@{OWN}"); NAMES_MAX + 1],
        },
        Request::Snapshot {
            names: snapshots(&[&format!("tank/vm@{OWN}"), &format!("back/x@{OWN}")]),
        },
        Request::Snapshot {
            names: snapshots(&[&format!("tank/vm@{OWN}"), &format!("tank/other@{OWN}")]),
        },
        Request::DestroyBookmarks {
            names: snapshots(&["tank/vm#mine"]),
        },
        Request::Bookmark {
            pairs: vec![("tank/vm#mine".to_owned(), "tank/vm@s".to_owned())],
        },
        Request::Bookmark {
            pairs: vec![(format!("tank/vm#{MARKED}"), "tank/other@s".to_owned())],
        },
        Request::Bookmark {
            pairs: vec![(format!("tank/other#{MARKED}"), "tank/vm@s".to_owned())],
        },
        Request::Bookmark {
            pairs: vec![(format!("tank/vm#{MARKED}"), "tank/vm/one@s".to_owned())],
        },
        Request::Bookmark {
            pairs: vec![(format!("tank/vm#{MARKED}"), "tank/vm#b".to_owned())],
        },
        Request::Hold {
            names: snapshots(&["tank/vm@s"]),
            tag: "keep".to_owned(),
        },
        Request::Release {
            names: snapshots(&["tank/vm@s"]),
            tag: "org.sanbox:immutable".to_owned(),
        },
        Request::Rollback {
            dataset: "tank/vm".to_owned(),
            snapshot: "s".to_owned(),
            newer: snapshots(&["x@y"]),
        },
        Request::Rollback {
            dataset: "tank/vm".to_owned(),
            snapshot: "s/t".to_owned(),
            newer: Vec::new(),
        },
    ];
    for call in refused {
        assert!(check(&both, &call).is_err(), "{call:?}");
    }
    // Others' snapshots: only where a job sent them, which the pool knows.
    let others = Request::DestroySnapshots {
        names: snapshots(&["tank/vm@daily", &format!("tank/vm@{OWN}")]),
    };
    let allowed = check(&both, &others).expect("perhaps");
    assert_eq!(allowed.sent, [("tank/vm".to_owned(), "daily".to_owned())]);
    assert!(check(&peer(false, true), &others).is_err());
    let destroy = Request::Destroy {
        dataset: "tank/vm/x".to_owned(),
    };
    let allowed = check(&both, &destroy).expect("perhaps");
    assert_eq!(allowed.test_clone.as_deref(), Some("tank/vm/x"));
}

#[test]
fn who_may_fail_over_puts_its_copies_in_use_and_takes_back_what_was_written() {
    let with = Peer {
        failover: true,
        ..peer(true, false)
    };
    let take = |root: &str, job: &str| Request::TakeOver {
        root: root.to_owned(),
        job: job.to_owned(),
    };
    assert!(check(&with, &take("tank/vm/x", "vm")).is_ok());
    for (root, job) in [("tank/other", "vm"), ("tank/vm", "a b"), ("tank/vm", "")] {
        assert!(check(&with, &take(root, job)).is_err(), "{root} {job}");
    }
    let refused = check(&peer(true, true), &take("tank/vm", "vm"));
    assert!(refused.is_err_and(|why| why.contains("--failover")));
    let inherit = Request::Inherit {
        dataset: "tank/vm".to_owned(),
        name: "org.sanbox:identity".to_owned(),
        received: false,
    };
    assert!(check(&with, &inherit).is_ok() && check(&peer(true, true), &inherit).is_err());
    let fence = |dataset: &str, job: &str| Request::Fence {
        dataset: dataset.to_owned(),
        generation: 1,
        job: job.to_owned(),
    };
    assert!(check(&with, &fence("tank/vm/x", "vm")).is_ok());
    for (dataset, job) in [
        ("tank/other", "vm"),
        ("tank/vm", "a b"),
        ("tank/vm@s", "vm"),
    ] {
        assert!(
            check(&with, &fence(dataset, job)).is_err(),
            "{dataset} {job}"
        );
    }
    assert!(check(&peer(true, true), &fence("tank/vm", "vm")).is_err());
    let send = Request::Send {
        stream: stream("tank/vm", "s", None),
    };
    assert!(check(&with, &send).is_ok() && check(&peer(true, false), &send).is_err());
    // What goes into a copy asks whether it is in use.
    let allowed = check(&with, &into("tank/vm/x", &[])).expect("perhaps");
    assert_eq!(allowed.changed.as_deref(), Some("tank/vm/x"));
}

#[test]
fn properties_that_act_here_are_neither_set_nor_brought() {
    let both = peer(true, true);
    for (name, value, expected) in [
        ("compression", "zstd", true),
        ("com.example:note", "x", true),
        ("readonly", "on", true),
        ("canmount", "noauto", true),
        ("sharenfs", "off", true),
        ("org.sanbox:replication", "vm:00000000000000ff", true),
        ("org.sanbox:replication", "x", false),
        ("org.sanbox:policy", "daily=1", false),
        ("org.sanbox:nbd", "on", false),
        ("mountpoint", "/etc", false),
        ("MOUNTPOINT", "/etc", false),
        ("sharenfs", "on", false),
        ("sharesmb", "on", false),
        ("canmount", "on", false),
        ("setuid", "on", false),
        ("devices", "on", false),
        ("exec", "on", false),
        ("keylocation", "file:///etc/shadow", false),
        ("volmode", "dev", false),
        ("zoned", "on", false),
        ("context", "x", false),
        ("no such", "x", false),
    ] {
        let checked = check(&both, &into("tank/vm", &[(name, value)]));
        assert_eq!(checked.is_ok(), expected, "{name}={value}: {checked:?}");
        let set = Request::Set {
            dataset: "tank/vm".to_owned(),
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let is_stored = matches!(name, "compression" | "com.example:note");
        assert_eq!(check(&both, &set).is_ok(), expected && !is_stored, "{name}");
    }
    for name in [
        "mountpoint",
        "sharenfs",
        "sharesmb",
        "canmount",
        "compression",
    ] {
        let inherit = Request::Inherit {
            dataset: "tank/vm".to_owned(),
            name: name.to_owned(),
            received: true,
        };
        assert!(check(&both, &inherit).is_err(), "{name}");
    }
    let brought = excluded(&WireReceive {
        dataset: "tank/vm".to_owned(),
        set: vec![("canmount".to_owned(), "noauto".to_owned())],
        excluded: vec!["atime".to_owned()],
    });
    for (name, expected) in [
        ("mountpoint", true),
        ("sharenfs", true),
        ("sharesmb", true),
        ("setuid", true),
        ("org.sanbox:policy", true),
        ("atime", true),
        ("canmount", false),
        ("compression", false),
        ("casesensitivity", false),
        ("used", false),
    ] {
        assert_eq!(
            brought.iter().any(|known| known == name),
            expected,
            "{name}"
        );
    }
}

#[test]
fn a_token_is_of_the_stream_that_is_asked_for() {
    let both = peer(true, true);
    let token = |to_name: &str, raw: bool, redacted: bool| {
        let mut list = NvList::new()
            .with("toname", to_name)
            .with("object", 1_u64)
            .with("offset", 2_u64)
            .with("toguid", 3_u64);
        if raw {
            list.insert_flag("rawok");
        }
        if redacted {
            list.insert("redact_snaps", 4_u64);
        }
        packed(&list)
    };
    for (to_name, raw_token, raw, redacted, expected) in [
        ("tank/vm@s", false, false, false, true),
        ("tank/vm@s", true, true, false, true),
        ("tank/vm@s", true, false, false, false),
        ("tank/vm@s", false, true, false, false),
        ("tank/vm@s", false, false, true, false),
        ("tank/vm@t", false, false, false, false),
        ("tank/other@s", false, false, false, false),
    ] {
        let call = Request::Send {
            stream: WireStream {
                token: Some(token(to_name, raw_token, redacted)),
                raw,
                ..stream("tank/vm", "s", None)
            },
        };
        let checked = check(&both, &call);
        assert_eq!(
            checked.is_ok(),
            expected,
            "{to_name} {raw_token} {raw}: {checked:?}"
        );
    }
    for text in ["", "1-x", &"1-".repeat(1000)] {
        let call = Request::Size {
            stream: WireStream {
                token: Some((*text).to_owned()),
                ..stream("tank/vm", "s", None)
            },
        };
        assert!(check(&both, &call).is_err(), "{text}");
    }
    for from in [
        WireFrom::Snapshot("../x".to_owned()),
        WireFrom::Snapshot("a@b".to_owned()),
        WireFrom::Bookmark("a#b".to_owned()),
        WireFrom::Bookmark(String::new()),
    ] {
        let call = Request::Send {
            stream: stream("tank/vm", "s", Some(from)),
        };
        assert!(check(&both, &call).is_err(), "{call:?}");
    }
}
