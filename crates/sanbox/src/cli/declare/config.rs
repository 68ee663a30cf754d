//! The declarations of `sanbox config`, `sanbox console` and `sanbox certificate`.

use super::super::command::Command;
use super::super::flag::long;

pub(crate) const CONFIG: Command = Command {
    name: "config",
    summary: "the settings of the appliance as one file",
    operands: "export | diff FILE | import FILE",
    flags: &[long(
        "dry-run",
        None,
        "import: only say what would be changed",
    )],
    text: &[
        "export: writes sanbox.toml with the limits that are in force, users with their roles, iSCSI targets and groups, jobs of replication, and \
         of datasets the properties sharenfs, sharesmb, org.sanbox:lun, org.sanbox:nbd and org.sanbox:policy where they are set. Passwords, \
         keys of scripts and secrets of initiators are not in it; addresses of webhooks are.",
        "diff: what is here alone is shown with '-', what is in the file alone with '+'; the exit code is 1 when there is any difference.",
        "import: what the file names becomes as it says; what it does not name stays, so nothing is destroyed. Limits, users, targets, jobs and \
         properties are changed at once, sanbox.toml from the next start on (the one before is kept as sanbox.toml.before). Users who are new \
         have no password until 'sanbox user passwd' gives them one, and a secret of initiators that is not known here is one that nobody knows, \
         until 'sanbox target chap' gives it. Datasets that are not there are left out, and named.",
    ],
    examples: &[
        (
            "sanbox config export > box.toml",
            "what to keep beside the backups",
        ),
        (
            "sanbox config import --dry-run box.toml",
            "what would be changed on this appliance",
        ),
    ],
    ..Command::NEW
};

pub(crate) const CONSOLE: Command = Command {
    name: "console",
    summary: "a menu in text, for a machine without a browser",
    operands: "",
    flags: &[],
    text: &[
        "Shows the state of the pools, alerts, addresses and shares, gives a user a new password, shares a file system by NFS, and opens a shell. \
         Each choice shows the command that does the same.",
    ],
    ..Command::NEW
};

pub(crate) const CERTIFICATE: Command = Command {
    name: "certificate",
    summary: "the certificate of the console: shown, and had from an authority such as Let's Encrypt",
    operands: "[show] | acme NAME... | acme off | renew",
    flags: &[
        long(
            "agree",
            None,
            "acme: the terms of the authority are agreed to",
        ),
        long(
            "contact",
            Some("MAIL"),
            "acme: where the authority writes to",
        ),
        long(
            "directory",
            Some("URL"),
            "acme: the authority (Let's Encrypt)",
        ),
        long(
            "challenge",
            Some("HOW"),
            "acme: http-01, for which it comes to port 80 of the names, or tls-alpn-01, to port 443 (http-01)",
        ),
        long(
            "http-port",
            Some("PORT"),
            "acme: the port of this machine that port 80 of the names leads to (80)",
        ),
        long(
            "ca-file",
            Some("FILE"),
            "acme: certificates to trust in place of the machine's, for an authority of one's own",
        ),
    ],
    text: &[
        "acme: asks the authority for a certificate with these names at once, and says what came of it. It is [acme] in sanbox.toml. The daemon \
         renews it when a third of its lifetime is left, and has it in use within seconds; connections that are open stay. When an order \
         fails the certificate before stays, an alert says why and what to do, and it is tried again later and later, or when the authority says.",
        "For http-01 the port is open while the authority is expected, at the addresses of 'listen' or at all. For tls-alpn-01 port 443 of the names \
         has to lead to the console's port. An appliance that the Internet does not reach has the choice of an authority of its own (step-ca).",
        "acme off: no more orders; the certificate stays until it ends, or another one takes its place. renew: a new one at once.",
    ],
    examples: &[
        (
            "sanbox certificate acme nas.example.org --contact ann@example.org --agree",
            "from Let's Encrypt",
        ),
        (
            "sanbox certificate acme nas.lan --directory https://ca.lan/acme/acme/directory --ca-file /etc/ssl/lan.pem --agree",
            "from an authority of one's own",
        ),
        (
            "sanbox certificate",
            "its fingerprint, and when the next one is ordered",
        ),
    ],
    ..Command::NEW
};
