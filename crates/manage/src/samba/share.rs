//! What the property `sharesmb` says: `on`, `off`, or options by a comma, in the words of Solaris and illumos
//! (`name=photos,guestok=true,ro=@192.0.2.0/24`) and of Samba's user shares (`guest_ok=y`).

use std::fmt;

use super::users::is_name;

/// The longest name of a share that all clients take, in characters ([MS-SRVS] 2.2.4.30 leaves 80).
const NAME_CHARACTERS_MAX: usize = 80;
/// Characters that a name of a share may not have: [MS-FSCC] 2.1.6, and `%`, which begins a macro of Samba's.
const FORBIDDEN: &[char] = &[
    '"', '/', '\\', '[', ']', ':', '|', '<', '>', '+', ';', ',', '?', '*', '=', '%',
];
/// Names of sections and shares that mean something else to Samba or to Windows.
const RESERVED: &[&str] = &["global", "homes", "printers", "print$", "ipc$", "admin$"];

/// Whether clients encrypt what they send to a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Those may that want to.
    #[default]
    Enabled,
    /// None may connect without.
    Required,
    /// It is not offered.
    Off,
}

/// What clients may keep of a share while they are not connected (offline files of Windows).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCaching {
    /// What the user chooses.
    #[default]
    Manual,
    /// Documents, by themselves.
    Documents,
    /// Programs, too.
    Programs,
    /// Nothing.
    Disabled,
}

/// How a dataset is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareOptions {
    /// The name clients see; none is made of the dataset's.
    pub name: Option<String>,
    /// What clients show beside the name.
    pub description: Option<String>,
    /// Whether those get in that give no password, or none that is known.
    pub guest: bool,
    /// Whether a user sees only what it may read (access-based enumeration).
    pub enumerate_by_access: bool,
    /// Whether writing is refused.
    pub read_only: bool,
    /// The only hosts and networks that may connect; none named is all.
    pub hosts: Vec<String>,
    /// Hosts and networks that may not.
    pub hosts_denied: Vec<String>,
    /// The only users that may connect (`@GROUP` for those of a group); none named is all.
    pub users: Vec<String>,
    /// Encryption.
    pub encryption: Encryption,
    /// Offline files.
    pub caching: ClientCaching,
    /// Whether macOS offers it for backups by Time Machine.
    pub time_machine: bool,
    /// Whether each user sees a directory of its own name in it, as a share of that name.
    pub homes: bool,
}

/// Why a value of `sharesmb` is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOptions(String);

impl fmt::Display for InvalidOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidOptions {}

fn refuse<T>(why: impl Into<String>) -> Result<T, InvalidOptions> {
    Err(InvalidOptions(why.into()))
}

/// Reads a value of `sharesmb`; `None` for `off`.
///
/// # Errors
/// Which option is unknown, or what about it cannot be.
pub fn parse(value: &str) -> Result<Option<ShareOptions>, InvalidOptions> {
    let mut options = ShareOptions::default();
    match value {
        "off" => return Ok(None),
        "on" => return Ok(Some(options)),
        "" => return refuse("nothing is said"),
        _ => {}
    }
    let (mut writers, mut readers): (Option<Vec<String>>, Option<Vec<String>>) = (None, None);
    for word in value.split(',') {
        let (name, argument) = match word.split_once('=') {
            Some((name, argument)) => (name, Some(argument)),
            None => (word, None),
        };
        match name {
            "name" => options.name = Some(share_name(argument.unwrap_or_default())?),
            "description" | "desc" => options.description = Some(text(name, argument)?),
            "guestok" | "guest_ok" => options.guest = switch(name, argument)?,
            "abe" => options.enumerate_by_access = switch(name, argument)?,
            "rw" => writers = Some(hosts(argument)?),
            "ro" => readers = Some(hosts(argument)?),
            "none" => options.hosts_denied = hosts(argument)?,
            "users" => options.users = users(argument)?,
            "encrypt" => options.encryption = encryption(argument)?,
            "csc" => options.caching = caching(argument)?,
            "timemachine" => options.time_machine = switch(name, argument)?,
            "homes" => options.homes = switch(name, argument)?,
            _ => return refuse(format!("'{word}' is not an option of SMB shares")),
        }
    }
    match (writers, readers) {
        (Some(_), Some(_)) => {
            return refuse(
                "'rw' and 'ro' stand together: a share is the same for all clients of SMB, who may write is for users, groups and modes",
            );
        }
        (Some(hosts), None) => options.hosts = hosts,
        (None, Some(hosts)) => (options.read_only, options.hosts) = (true, hosts),
        (None, None) => {}
    }
    if options.homes && (options.guest || options.time_machine || options.name.is_some()) {
        return refuse("'homes' goes with neither a name, nor guests, nor Time Machine");
    }
    Ok(Some(options))
}

fn switch(name: &str, argument: Option<&str>) -> Result<bool, InvalidOptions> {
    match argument {
        None | Some("true" | "on" | "yes" | "y") => Ok(true),
        Some("false" | "off" | "no" | "n") => Ok(false),
        Some(other) => refuse(format!("'{name}={other}' is neither true nor false")),
    }
}

fn text(name: &str, argument: Option<&str>) -> Result<String, InvalidOptions> {
    let text = argument.unwrap_or_default();
    if text
        .chars()
        .any(|character| character.is_control() || "%;#\"\\".contains(character))
    {
        return refuse(format!(
            "'{name}' has a character that it cannot have (%;#\"\\)"
        ));
    }
    Ok(text.to_owned())
}

fn share_name(name: &str) -> Result<String, InvalidOptions> {
    let forbidden = |character: char| character.is_control() || FORBIDDEN.contains(&character);
    if name.trim() != name || name.is_empty() || name.chars().count() > NAME_CHARACTERS_MAX {
        return refuse(format!(
            "a share's name has 1 to {NAME_CHARACTERS_MAX} characters, none of them a blank at an end"
        ));
    }
    if let Some(character) = name.chars().find(|character| forbidden(*character)) {
        return refuse(format!("a share's name cannot have '{character}'"));
    }
    if is_reserved(name) {
        return refuse(format!(
            "'{name}' has another meaning and is no name for a share"
        ));
    }
    Ok(name.to_owned())
}

fn is_reserved(name: &str) -> bool {
    RESERVED
        .iter()
        .any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Hosts and networks by a colon, as in `sharenfs`: `@192.0.2.0/24:host:.domain`; an IPv6 address stands in brackets.
fn hosts(argument: Option<&str>) -> Result<Vec<String>, InvalidOptions> {
    let mut found = Vec::new();
    let mut rest = argument.unwrap_or_default();
    while !rest.is_empty() {
        let plain = rest.strip_prefix('@').unwrap_or(rest);
        let (word, after) = match plain.strip_prefix('[') {
            Some(inside) => match inside.split_once(']') {
                Some((address, after)) => {
                    let end = after.find(':').unwrap_or(after.len());
                    let (mask, after) = after.split_at(end);
                    (format!("{address}{mask}"), after)
                }
                None => return refuse(format!("'{rest}' has no ']'")),
            },
            None => {
                let end = plain.find(':').unwrap_or(plain.len());
                (plain[..end].to_owned(), &plain[end..])
            }
        };
        let fits =
            |character: char| character.is_ascii_alphanumeric() || ".-_:/".contains(character);
        if word.is_empty() || !word.chars().all(fits) {
            return refuse(format!("'{word}' is neither a host nor a network"));
        }
        found.push(word);
        rest = after.strip_prefix(':').unwrap_or(after);
    }
    Ok(found)
}

fn users(argument: Option<&str>) -> Result<Vec<String>, InvalidOptions> {
    let names: Vec<String> = argument
        .unwrap_or_default()
        .split(':')
        .map(str::to_owned)
        .collect();
    let bad = names.iter().find(|name| {
        let name = name.strip_prefix('@').unwrap_or(name);
        !is_user(name)
    });
    match bad {
        Some(name) => refuse(format!("'{name}' is neither a user nor an @group")),
        None => Ok(names),
    }
}

/// Whether this can be the name of a user or group: of the machine, or of a domain, behind the domain's and a backslash.
fn is_user(name: &str) -> bool {
    let Some((domain, name)) = name.split_once('\\') else {
        return is_name(name);
    };
    // Groups of a domain have spaces in their names.
    is_name(domain) && name.split(' ').all(is_name)
}

fn encryption(argument: Option<&str>) -> Result<Encryption, InvalidOptions> {
    match argument {
        Some("enabled" | "auto") => Ok(Encryption::Enabled),
        Some("required") => Ok(Encryption::Required),
        Some("disabled") => Ok(Encryption::Off),
        _ => refuse("'encrypt' is enabled, required or disabled"),
    }
}

fn caching(argument: Option<&str>) -> Result<ClientCaching, InvalidOptions> {
    match argument {
        Some("manual") => Ok(ClientCaching::Manual),
        Some("auto") => Ok(ClientCaching::Documents),
        Some("vdo") => Ok(ClientCaching::Programs),
        Some("disabled") => Ok(ClientCaching::Disabled),
        _ => refuse("'csc' is manual, auto, vdo or disabled"),
    }
}

/// Returns the name clients see of a dataset that is shared without one: its own, with an underscore for what cannot be in it, as
/// OpenZFS on Linux makes it. Where the options are an ancestor's, and name a share, that name stands for the ancestor's part.
#[must_use]
pub fn resource_name(
    dataset: &str,
    options: &ShareOptions,
    inherited_from: Option<&str>,
) -> String {
    let below = inherited_from.and_then(|ancestor| dataset.strip_prefix(ancestor));
    let name = match (&options.name, below) {
        (Some(name), Some(below)) => format!("{name}{below}"),
        (Some(name), None) => name.clone(),
        (None, _) => dataset.to_owned(),
    };
    let clean = |character: char| {
        if character.is_control() || FORBIDDEN.contains(&character) {
            '_'
        } else {
            character
        }
    };
    let name: String = name.chars().map(clean).take(NAME_CHARACTERS_MAX).collect();
    if is_reserved(&name) {
        format!("{name}_")
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> ShareOptions {
        parse(value).expect("valid").expect("shared")
    }

    fn refused(value: &str, part: &str) {
        let why = parse(value).expect_err("invalid").to_string();
        assert!(why.contains(part), "{value}: {why}");
    }

    #[test]
    fn both_grammars() {
        assert_eq!(parse("off"), Ok(None));
        assert_eq!(read("on"), ShareOptions::default());
        let options =
            read("name=Photos,guestok=true,abe=true,ro=@192.0.2.0/24:pc1,encrypt=required");
        assert_eq!(
            options,
            ShareOptions {
                name: Some("Photos".to_owned()),
                guest: true,
                enumerate_by_access: true,
                read_only: true,
                hosts: vec!["192.0.2.0/24".to_owned(), "pc1".to_owned()],
                encryption: Encryption::Required,
                ..ShareOptions::default()
            }
        );
        assert!(read("guest_ok=y").guest);
        assert!(!read("guest_ok=n").guest);
        assert_eq!(read("rw=[2001:db8::]/32:b").hosts, ["2001:db8::/32", "b"]);
        assert_eq!(read("users=anna:@staff").users, ["anna", "@staff"]);
        assert_eq!(read("csc=disabled").caching, ClientCaching::Disabled);
        assert_eq!(read("ro").hosts, [""; 0]);
        assert!(read("ro").read_only && read("homes").homes && read("timemachine=on").time_machine);
    }

    #[test]
    fn what_cannot_be_is_named() {
        refused("", "nothing");
        refused("maybe", "'maybe' is not an option");
        refused("guestok=perhaps", "neither true nor false");
        refused("rw=a,ro=b", "stand together");
        refused("name=a/b", "cannot have '/'");
        refused("name=", "1 to 80");
        refused("name=homes", "another meaning");
        refused("name=x%U", "cannot have '%'");
        refused("description=a\nb", "character");
        refused("rw=a b", "neither a host");
        refused("rw=[::1", "no ']'");
        let of_domain = read(r"users=AD\anna:@AD\Domain Users").users;
        assert_eq!(of_domain, [r"AD\anna", r"@AD\Domain Users"]);
        refused(r"users=AD\", "neither a user");
        refused("users=an na", "neither a user");
        refused("homes,guestok", "goes with neither");
        refused("encrypt=maybe", "'encrypt' is");
    }

    #[test]
    fn names_of_shares() {
        let none = ShareOptions::default();
        let named = read("name=work");
        for (dataset, options, from, name) in [
            ("tank/photos", &none, None, "tank_photos"),
            ("tank/a:b", &none, None, "tank_a_b"),
            ("homes", &none, None, "homes_"),
            ("tank/w", &named, None, "work"),
            ("tank/w/anna/x", &named, Some("tank/w"), "work_anna_x"),
        ] {
            assert_eq!(resource_name(dataset, options, from), name);
        }
    }
}
