//! The configuration of `smbd`, written whole for what is shared now: it is not edited by hand, so what it does not say is Samba's default.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use super::domain::Domain;
use super::share::{ClientCaching, Encryption, ShareOptions};

/// Directories of the service's own that Samba uses, below its directory: the option that names each, and its name.
const DIRECTORIES: &[(&str, &str)] = &[
    ("private dir", "private"),
    ("state directory", "state"),
    ("cache directory", "cache"),
    ("pid directory", "pid"),
    ("ncalrpc dir", "ncalrpc"),
];

/// The directory with what Samba's processes know of each other and of open files, in the service's directory.
pub const LOCKS: &str = "lock";
/// Where Samba finds it, in its own namespace: a process that acts as a user looks there for the other ones. Of those that it does
/// not find, it takes what their clients have open for left behind, and passes it over.
pub const LOCKS_AT: &str = "/run/sanbox-locks";
/// The module of Samba that asks the file system for the name that is the wanted one but for case, by an extended attribute of the
/// directory; without it Samba reads the directory for each name that is not there. smb.conf(5), vfs_glusterfs_fuse(8)
pub const REAL_NAME_MODULE: &str = "glusterfs_fuse";
/// What that attribute's name begins with; the wanted name follows.
pub const REAL_NAME_ATTRIBUTE: &[u8] = b"glusterfs.get_real_filename:";
/// The file with the users and their passwords, in the service's directory.
pub const USERS: &str = "users";
/// The file of this configuration, in the service's directory.
pub const CONFIGURATION: &str = "smb.conf";
/// The log of Samba, in the service's directory.
pub const LOG: &str = "log/smbd.log";

/// What holds for all shares.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// TCP port.
    pub port: u16,
    /// Addresses to listen at; none is all.
    pub addresses: &'a [IpAddr],
    /// Where files of the service are.
    pub directory: &'a Path,
    /// Workgroup that Windows shows.
    pub workgroup: &'a str,
    /// Whether clients have to sign.
    pub signing_required: bool,
    /// Whether clients encrypt.
    pub encryption: Encryption,
    /// Clients at once.
    pub clients_max: usize,
    /// Whether Samba has [`REAL_NAME_MODULE`].
    pub asks_real_names: bool,
    /// The domain that this machine is a member of.
    pub domain: Option<&'a Domain>,
}

/// A dataset that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDataset {
    /// The name clients see.
    pub name: String,
    /// The directory.
    pub path: String,
    /// How.
    pub options: ShareOptions,
    /// Nothing may be written to the dataset.
    pub read_only: bool,
    /// Names are looked up without regard to case by the file system itself.
    pub case_insensitive: bool,
    /// Most bytes of the dataset, if that is limited; what a backup by Time Machine is told.
    pub bytes_max: Option<u64>,
}

/// Returns the names of the directories that Samba finds below the service's directory.
pub fn directories() -> impl Iterator<Item = &'static str> {
    let below = DIRECTORIES.iter().map(|(_, name)| *name);
    below.chain([LOCKS, "log"])
}

/// Returns the text of `smb.conf`.
#[must_use]
pub fn text(service: &Service<'_>, shares: &[SharedDataset]) -> String {
    let mut text = String::from(
        "# Written by sanbox: changes are lost. Shares follow the property sharesmb of datasets.\n",
    );
    global(&mut text, service, shares);
    for share in shares {
        section(&mut text, service, share);
    }
    text
}

/// Returns the text of the configuration with which the machine joins a domain or leaves it, below the service's directory.
#[must_use]
pub fn joining(domain: &Domain, workgroup: &str, directory: &Path) -> String {
    let mut text = String::from("# Written by sanbox: changes are lost.\n[global]\n");
    line(&mut text, "workgroup", workgroup);
    domain.options(&mut text, workgroup);
    directory_options(&mut text, directory);
    let locks = directory.join(LOCKS);
    line(&mut text, "lock directory", locks.display());
    text
}

fn line(text: &mut String, key: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\t{key} = {value}");
}

fn yes(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

fn encryption(chosen: Encryption) -> &'static str {
    match chosen {
        Encryption::Enabled => "if_required",
        Encryption::Required => "required",
        Encryption::Off => "off",
    }
}

fn global(text: &mut String, service: &Service<'_>, shares: &[SharedDataset]) {
    text.push_str("[global]\n");
    let directory = service.directory.display();
    match service.domain {
        None => line(text, "server role", "standalone server"),
        Some(domain) => domain.options(text, service.workgroup),
    }
    line(text, "server string", "sanbox");
    line(text, "workgroup", service.workgroup);
    line(text, "disable netbios", "yes");
    line(text, "smb ports", service.port);
    // Avahi is told of shares by a file, as they come and go.
    line(text, "multicast dns register", "no");
    if !service.addresses.is_empty() {
        let addresses: Vec<String> = service.addresses.iter().map(IpAddr::to_string).collect();
        line(text, "interfaces", addresses.join(" "));
        line(text, "bind interfaces only", "yes");
    }
    directory_options(text, service.directory);
    line(text, "lock directory", LOCKS_AT);
    line(
        text,
        "passdb backend",
        format_args!("smbpasswd:{directory}/{USERS}"),
    );
    line(text, "log file", format_args!("{directory}/{LOG}"));
    line(text, "max log size", 1024);
    line(text, "usershare max shares", 0);
    line(text, "load printers", "no");
    line(text, "printcap name", "/dev/null");
    line(text, "disable spoolss", "yes");
    line(text, "max smbd processes", service.clients_max);
    line(
        text,
        "server signing",
        if service.signing_required {
            "mandatory"
        } else {
            "default"
        },
    );
    line(text, "server smb encrypt", encryption(service.encryption));
    if shares.iter().any(|share| share.options.guest) {
        line(text, "map to guest", "Bad User");
    } else {
        line(text, "restrict anonymous", 2);
    }
    // Locks of the kernel would reach no other process on a mount that only Samba uses, and keep clients from taking up again what
    // they had open after a broken connection. smb.conf(5), durable handles
    line(text, "kernel oplocks", "no");
    line(text, "kernel share modes", "no");
    line(text, "posix locking", "no");
    modules(text, service);
}

/// Writes where Samba has what is its own, below the service's directory.
fn directory_options(text: &mut String, directory: &Path) {
    for (option, name) in DIRECTORIES {
        line(text, option, format_args!("{}/{name}", directory.display()));
    }
}

/// Samba's modules, and what they are told.
fn modules(text: &mut String, service: &Service<'_>) {
    // Alternate streams, resource forks and attributes of Windows and macOS are extended attributes, Windows' lists too, checked
    // against the mode and POSIX list that they were made from.
    let modules = "shadow_copy2 catia fruit streams_xattr acl_xattr";
    if service.asks_real_names {
        line(
            text,
            "vfs objects",
            format_args!("{modules} {REAL_NAME_MODULE}"),
        );
    } else {
        line(text, "vfs objects", modules);
    }
    // Previous versions are the snapshots, by when they were taken.
    line(text, "shadow:snapdir", ".zfs/shadow");
    line(text, "shadow:sort", "desc");
    line(text, "fruit:metadata", "stream");
    line(text, "fruit:resource", "stream");
    line(text, "fruit:encoding", "native");
    line(text, "fruit:posix_rename", "yes");
    line(text, "fruit:veto_appledouble", "no");
    line(text, "fruit:wipe_intentionally_left_blank_rfork", "yes");
    line(text, "fruit:delete_empty_adfiles", "yes");
    // The modes of macOS for clients that ask would go past Windows' lists.
    line(text, "fruit:nfs_aces", "no");
}

fn section(text: &mut String, service: &Service<'_>, share: &SharedDataset) {
    let options = &share.options;
    let name = if options.homes { "homes" } else { &share.name };
    let _ = writeln!(text, "[{name}]");
    let own = if options.homes { "/%S" } else { "" };
    line(text, "path", format_args!("{}{own}", share.path));
    if let Some(description) = &options.description {
        line(text, "comment", description);
    }
    line(text, "read only", yes(share.read_only || options.read_only));
    if options.guest {
        line(text, "guest ok", "yes");
    }
    if options.homes {
        line(text, "browseable", "no");
        line(text, "valid users", "%S");
    } else if !options.users.is_empty() {
        line(text, "valid users", quoted(&options.users).join(" "));
    }
    if options.enumerate_by_access {
        line(text, "hide unreadable", "yes");
        line(text, "access based share enum", "yes");
    }
    if !options.hosts.is_empty() {
        line(text, "hosts allow", options.hosts.join(" "));
        line(text, "hosts deny", "ALL");
    } else if !options.hosts_denied.is_empty() {
        line(text, "hosts deny", options.hosts_denied.join(" "));
    }
    if options.encryption != Encryption::Enabled {
        line(text, "server smb encrypt", encryption(options.encryption));
    }
    let caching = match options.caching {
        ClientCaching::Manual => None,
        ClientCaching::Documents => Some("documents"),
        ClientCaching::Programs => Some("programs"),
        ClientCaching::Disabled => Some("disable"),
    };
    if let Some(caching) = caching {
        line(text, "csc policy", caching);
    }
    if share.case_insensitive && !service.asks_real_names {
        // The file system finds names whatever their case: Samba need not search directories for them. Patterns then have case, too.
        line(text, "case sensitive", "yes");
    }
    if options.time_machine {
        line(text, "fruit:time machine", "yes");
        if let Some(bytes) = share.bytes_max {
            line(text, "fruit:time machine max size", bytes);
        }
    }
}

/// Names of users and groups as a list has them: of the machine they hold no space, of a domain they may.
fn quoted(names: &[String]) -> Vec<String> {
    let each = names.iter().map(|name| match name.strip_prefix('@') {
        Some(group) if group.contains(' ') => format!("@\"{group}\""),
        None if name.contains(' ') => format!("\"{name}\""),
        _ => name.clone(),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::share;
    use super::*;

    fn dataset(name: &str, number: u64, sharesmb: &str) -> SharedDataset {
        let options = share::parse(sharesmb).expect("valid").expect("shared");
        SharedDataset {
            name: name.to_owned(),
            path: format!("/run/sanbox/{number:016x}"),
            options,
            read_only: false,
            case_insensitive: false,
            bytes_max: None,
        }
    }

    #[test]
    fn the_whole_file() {
        let addresses = ["127.0.0.1".parse().expect("an address")];
        let service = Service {
            port: 445,
            addresses: &addresses,
            directory: Path::new("/var/lib/sanbox/smb"),
            workgroup: "WORKGROUP",
            signing_required: false,
            encryption: Encryption::Enabled,
            clients_max: 1000,
            asks_real_names: false,
            domain: None,
        };
        let shares = [
            dataset("tank_photos", 1, "on"),
            SharedDataset {
                read_only: true,
                case_insensitive: true,
                ..dataset(
                    "Films",
                    2,
                    "name=Films,guestok=true,description=all of them,abe=true,none=10.0.0.9",
                )
            },
            SharedDataset {
                bytes_max: Some(1 << 40),
                ..dataset(
                    "mac",
                    3,
                    "name=mac,timemachine,encrypt=required,users=anna:@staff,rw=@192.0.2.0/24",
                )
            },
            dataset("tank_home", 4, "homes,csc=disabled"),
        ];
        assert_eq!(text(&service, &shares), include_str!("testdata/smb.conf"));
        let closed = Service {
            signing_required: true,
            encryption: Encryption::Required,
            addresses: &[],
            asks_real_names: true,
            ..service
        };
        let insensitive = text(&closed, &shares[1..2]);
        assert!(!insensitive.contains("case sensitive"));
        let text = text(&closed, &shares[..1]);
        for part in [
            "server signing = mandatory",
            "server smb encrypt = required",
            "restrict anonymous = 2",
            "acl_xattr glusterfs_fuse\n",
        ] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("interfaces") && !text.contains("guest"));
        let domain = Domain::new("ad.example", "1000000-1999999");
        let domain = domain.expect("settings").expect("a domain");
        let member = Service {
            workgroup: "ADEX",
            domain: Some(&domain),
            ..closed
        };
        let users = r"name=team,users=anna:ADEX\bert:@ADEX\Domain Users";
        let text = super::text(&member, &[dataset("team", 1, users)]);
        for part in [
            "\tsecurity = ads\n\trealm = AD.EXAMPLE\n",
            "\tidmap config * : range = 1000000-1009999\n",
            "\tidmap config ADEX : backend = rid\n\tidmap config ADEX : range = 1010000-1999999\n",
            "\tvalid users = anna ADEX\\bert @\"ADEX\\Domain Users\"\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("standalone"));
    }
}
