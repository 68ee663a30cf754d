//! The declaration of `sanbox peer`.

use super::super::command::Command;
use super::super::flag::{long, short};

pub(super) const PEER: Command = Command {
    name: "peer",
    summary: "other appliances, to replicate with by a protocol of their own",
    operands: "invite [NAME] | add NAME ADDRESS CODE | list | show NAME | rename NAME NEW | remove NAME",
    flags: &[
        long(
            "datasets",
            Some("DATASET"),
            "invite: what the peer reaches here, with all below (may be repeated)",
        ),
        long("push", None, "invite: the peer may send there"),
        long("pull", None, "invite: the peer may take what is there"),
        long(
            "failover",
            None,
            "invite: the peer may put what it sent in use in place of the source, and take back what was written there",
        ),
        short('H', "list: no headings, tabs between columns"),
    ],
    text: &[
        "Two appliances know each other by certificates that they made themselves. On the one that is to be reached, invite prints a code; on \
         the other, add redeems it. The code is good for 15 minutes and once, and proves both sides to each other: nothing that stands \
         between them can be paired in the place of one of them. Then 'sanbox replication create NAME --from DATASET --to \
         peer://PEER/DATASET' sends there, and '--from peer://PEER/DATASET --to DATASET' takes from there.",
        "A peer reaches the datasets that it was invited to, and those below. With --push it makes datasets and snapshots there and changes and \
         destroys what its jobs made; with --pull it takes snapshots of what is there, its jobs' own snapshots, bookmarks and holds \
         among them. Mount points and shares that come along are never in force, and are put in force where the copy is: by 'sanbox \
         replication takeover', or by the peer itself ('sanbox replication failover') where it was invited with --failover as well.",
        "Peers are answered at TCP port 8444 ([replication] port and listen in sanbox.toml, --replication-port), which is open while there is a \
         peer that was invited, or an invitation. All that goes over it is encrypted (TLS 1.3), compressed where that pays, and checked \
         from end to end before it becomes a snapshot.",
        "add with the name of a peer that is known pairs it anew: one of the two was set up anew, or is reached elsewhere. Jobs go on.",
        "remove cuts the peer off at once; what it sent stays. Nothing is asked of the peer, which then is refused. The peers are in peers.toml \
         of the state directory, and this appliance's key is in replication-identity.pem.",
    ],
    examples: &[
        (
            "sanbox peer invite office --datasets vault/office --push",
            "prints what is to be given on the appliance at the office, which will send",
        ),
        (
            "sanbox peer invite office --datasets vault/office --push --failover",
            "the same, and the office may put its copies in use, and take back what was written to them",
        ),
        (
            "sanbox peer add vault vault.example.org:8444 7K3M-...",
            "on the other one, with the code that was printed",
        ),
        (
            "sanbox replication create vm --from tank/vm --to peer://vault/vault/office/vm -r",
            "sends a dataset with all below it there",
        ),
    ],
    ..Command::NEW
};
