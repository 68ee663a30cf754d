//! `zfs load-key` and `unload-key`, and keys that other commands ask for.
//!
//! A key comes from standard input, a file or a web server, is turned into the key that wraps the datasets' keys, and goes to the engine. It
//! stands in no argument, no log and no message.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::property::DatasetKind;
use engine::{
    DatasetFilter, DatasetInfo, EngineError, KeyFormat, NewKey, PlannedKey, PoolHandle,
    PropertyQuery, WrappingKey,
};
use zeroize::Zeroizing;

use super::{Selection, select, shown};
use crate::cli::command::{Command, Word, options};
use crate::cli::input::Input;
use crate::cli::{Exit, Outcome, Session};
use crate::paths;
use crate::web_client::{FetchError, Trust, fetch};

options! {
    LoadOption {
        Recursive = short('r', "what lies below, too"),
        CheckOnly = short('n', "only say whether it is the right key"),
        Location(String) = valued('L', "keylocation", "the key is here, whatever the property says"),
        All = short('a', "all encrypted datasets"),
    }
}

/// The declaration of `zfs load-key`.
pub(super) const LOAD_KEY: Command = Command {
    name: "load-key",
    summary: "load the keys of encrypted datasets",
    usage: "\tload-key [-rn] [-L <keylocation>] <-a | filesystem|volume>\n",
    flags: LoadOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[
        ("zfs load-key tank/secret", "asks for the passphrase"),
        (
            "zfs load-key -L file:///root/secret.key tank/secret",
            "from a file",
        ),
    ],
    ..Command::NEW
};

options! {
    UnloadOption {
        Recursive = short('r', "what lies below, too"),
        All = short('a', "all encrypted datasets"),
    }
}

/// The declaration of `zfs unload-key`.
pub(super) const UNLOAD_KEY: Command = Command {
    name: "unload-key",
    summary: "unload the keys of encrypted datasets",
    usage: "\tunload-key [-r] <-a | filesystem|volume>\n",
    flags: UnloadOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

/// Times a person is asked for a key.
// OpenZFS: lib/libzfs/libzfs_crypto.c, MAX_KEY_PROMPT_ATTEMPTS
const ATTEMPTS: u32 = 3;
/// Bytes of a raw key.
const RAW_KEY: usize = 32;
/// Digits of a hexadecimal one.
const HEX_KEY: usize = 64;
/// Most bytes of a line that a passphrase can be.
const LINE_MAX: usize = 64 << 10;
/// Lengths of a new passphrase.
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=512;

/// What a user gave as a key. Zeroed when dropped.
pub(super) type KeyBytes = Zeroizing<Vec<u8>>;

/// Why there is no key.
#[derive(Debug)]
pub(super) struct KeyError {
    pub(super) why: String,
    /// Another answer to the prompt may be right.
    pub(super) may_retry: bool,
}

impl KeyError {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            may_retry: false,
        }
    }
}

/// Standard input as a source of keys: each takes its own part of it.
pub(in crate::cli) struct KeyInput {
    input: Option<Input>,
    pending: KeyBytes,
}

impl KeyInput {
    pub(in crate::cli) fn new(session: &Session) -> Self {
        Self {
            input: session.input.clone(),
            pending: Zeroizing::default(),
        }
    }

    /// Takes bytes until `ends` finds where the key ends, or the input does.
    async fn take(&mut self, ends: impl Fn(&[u8]) -> Option<usize>) -> KeyBytes {
        let end = loop {
            if let Some(end) = ends(&self.pending) {
                break end;
            }
            let more = match &self.input {
                Some(input) => input.next().await.map(Zeroizing::new),
                None => None,
            };
            let Some(more) = more else {
                break self.pending.len();
            };
            // Where it grows it leaves a copy behind: a key that comes at once is taken as it is.
            if self.pending.is_empty() {
                self.pending = more;
            } else {
                self.pending.extend_from_slice(&more);
            }
        };
        let rest = Zeroizing::new(self.pending.split_off(end));
        std::mem::replace(&mut self.pending, rest)
    }

    /// The next key in this form: a line, or for raw keys one byte more than it should have.
    async fn next(&mut self, format: Form) -> KeyBytes {
        let ends = |bytes: &[u8]| end_of_key(format, bytes);
        without_newline(format, self.take(ends).await)
    }
}

/// How a key is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Raw,
    Hex,
    Passphrase,
}

impl Form {
    fn of(format: KeyFormat) -> Self {
        match format {
            KeyFormat::Raw => Self::Raw,
            KeyFormat::Hex => Self::Hex,
            KeyFormat::Passphrase { .. } => Self::Passphrase,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw key",
            Self::Hex => "hex key",
            Self::Passphrase => "passphrase",
        }
    }
}

fn end_of_key(form: Form, bytes: &[u8]) -> Option<usize> {
    if form == Form::Raw {
        return (bytes.len() > RAW_KEY).then_some(RAW_KEY + 1);
    }
    let line = bytes.iter().position(|byte| *byte == b'\n');
    line.map(|at| at + 1)
        .or((bytes.len() > LINE_MAX).then_some(bytes.len()))
}

fn without_newline(form: Form, mut bytes: KeyBytes) -> KeyBytes {
    if form != Form::Raw && bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    bytes
}

/// Checks what a user gave as a key; a new one (`is_new`) must also be long enough.
// OpenZFS: lib/libzfs/libzfs_crypto.c, validate_key (words)
fn check(form: Form, key: &[u8], is_new: bool) -> Result<(), String> {
    match form {
        Form::Raw if key.len() < RAW_KEY => Err(format!("Raw key too short (expected {RAW_KEY}).")),
        Form::Raw if key.len() > RAW_KEY => Err(format!("Raw key too long (expected {RAW_KEY}).")),
        Form::Hex if key.len() < HEX_KEY => Err(format!("Hex key too short (expected {HEX_KEY}).")),
        Form::Hex if key.len() > HEX_KEY => Err(format!("Hex key too long (expected {HEX_KEY}).")),
        Form::Hex if !key.iter().all(u8::is_ascii_hexdigit) => {
            Err("Invalid hex character detected.".to_owned())
        }
        Form::Passphrase if is_new && key.len() > *PASSPHRASE.end() => {
            Err(format!("Passphrase too long (max {}).", PASSPHRASE.end()))
        }
        Form::Passphrase if is_new && key.len() < *PASSPHRASE.start() => Err(format!(
            "Passphrase too short (min {}).",
            PASSPHRASE.start()
        )),
        _ => Ok(()),
    }
}

/// Sees to it that this process leaves no core dump from now on: it gets a key, and the ciphers of blocks that are made of it lie where
/// their library puts them.
pub(super) fn leave_no_core_dump() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    // It may be that already.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Makes the wrapping key of what a user gave.
pub(super) fn wrapping_key(format: KeyFormat, key: &[u8]) -> Result<WrappingKey, String> {
    leave_no_core_dump();
    let made = match format {
        KeyFormat::Raw => WrappingKey::from_raw(key),
        KeyFormat::Hex => WrappingKey::from_hex(key),
        KeyFormat::Passphrase { salt, iterations } => {
            // OpenZFS takes it as a string of C.
            let end = key.iter().position(|byte| *byte == 0);
            let passphrase = &key[..end.unwrap_or(key.len())];
            WrappingKey::from_passphrase(passphrase, salt, iterations)
        }
    };
    made.map_err(|error| error.to_string())
}

/// Says it where a key that was just made may be swapped.
pub(super) fn warn_of_swap(session: &Session) {
    if engine::keys_may_be_swapped() {
        session.out.error(
            "warning: the key may be swapped out: the limit on locked memory is too small (ulimit -l, LimitMEMLOCK= of a service)",
        );
    }
}

/// Where a key is.
enum Location {
    Prompt,
    File(PathBuf),
    /// A document of a web server.
    Web(String),
}

/// Takes a key location apart.
// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_prop_parse_keylocation, get_key_material (words)
fn location(text: &str) -> Result<Location, String> {
    if text == "prompt" {
        return Ok(Location::Prompt);
    }
    match text.split_once("://") {
        Some(("file", path)) => Ok(Location::File(PathBuf::from(path))),
        Some(("http" | "https", _)) => Ok(Location::Web(text.to_owned())),
        Some((scheme, _)) if !scheme.is_empty() => Err("URI scheme is not supported".to_owned()),
        _ => Err("Invalid keylocation".to_owned()),
    }
}

/// Reads a key from a file.
async fn from_file(session: &Session, path: &Path, form: Form) -> Result<KeyBytes, KeyError> {
    if !session.may_read_files() {
        return Err(KeyError::new(
            "Failed to open key material file: Permission denied",
        ));
    }
    let file = path.to_owned();
    let read = move || -> std::io::Result<KeyBytes> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(LINE_MAX + 1));
        let file = std::fs::File::open(file)?;
        file.take(LINE_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let failed = |why: String| KeyError::new(format!("Failed to open key material file: {why}"));
    let bytes = paths::call(path, read)
        .await
        .map_err(failed)?
        .map_err(|error| failed(crate::cli::format::plain_words(&error)))?;
    Ok(first_key(form, bytes))
}

/// The key that a file or a document begins with.
fn first_key(form: Form, mut bytes: KeyBytes) -> KeyBytes {
    if let Some(end) = end_of_key(form, &bytes) {
        bytes.truncate(end);
    }
    without_newline(form, bytes)
}

/// Fetches a key from a web server.
// OpenZFS: lib/libzfs/libzfs_crypto.c, get_key_material_https (words, and the variables with files of certificates)
async fn from_web(session: &Session, address: &str, form: Form) -> Result<KeyBytes, KeyError> {
    // As with files: this process reaches more than its callers may.
    if !session.may_read_files() {
        let why = format!("Failed to connect to {address}: Permission denied");
        return Err(KeyError::new(why));
    }
    let file = |name| {
        let named = session.caller.environment.get(name);
        named.map(|path| session.path(path))
    };
    let trust = Trust {
        file: file("SSL_CA_CERT_FILE"),
        directory: file("SSL_CA_CERT_PATH"),
        certificate: file("SSL_CLIENT_CERT_FILE"),
        key: file("SSL_CLIENT_KEY_FILE"),
    };
    match fetch(address, &trust).await {
        Ok(bytes) => Ok(first_key(form, bytes)),
        Err(FetchError::Status(status)) => {
            Err(KeyError::new(format!("Couldn't GET {address}: {status}")))
        }
        Err(FetchError::Failed(why)) => Err(KeyError::new(format!(
            "Failed to connect to {address}: {why}"
        ))),
    }
}

/// Asks for a key or reads one: `of` is the dataset it is for, `is_new` a key that is chosen now.
// OpenZFS: lib/libzfs/libzfs_crypto.c, get_key_material
pub(super) async fn read_key(
    session: &Session,
    input: &mut KeyInput,
    form: Form,
    keylocation: &str,
    of: Option<&str>,
    is_new: bool,
) -> Result<KeyBytes, KeyError> {
    let (key, asked) = match location(keylocation).map_err(KeyError::new)? {
        Location::File(path) => (from_file(session, &path, form).await?, false),
        Location::Web(address) => (from_web(session, &address, form).await?, false),
        Location::Prompt if !session.caller.terminal => (input.next(form).await, false),
        Location::Prompt if form == Form::Raw => {
            return Err(KeyError::new("Cannot enter raw keys on the terminal"));
        }
        Location::Prompt => {
            let key = prompt(session, input, form, of, is_new, false).await;
            if is_new {
                let refused = |why| KeyError {
                    why,
                    may_retry: true,
                };
                check(form, &key, true).map_err(refused)?;
                let again = prompt(session, input, form, of, is_new, true).await;
                if *key != *again {
                    return Err(refused("Provided keys do not match.".to_owned()));
                }
            }
            (key, true)
        }
    };
    check(form, &key, is_new).map_err(|why| KeyError {
        why,
        may_retry: asked,
    })?;
    Ok(key)
}

/// Takes the key that a dataset to be created, or whose key is changed, is to have; says why there is none. `of` is the dataset,
/// where it is there already.
// OpenZFS: lib/libzfs/libzfs_crypto.c, populate_create_encryption_params_nvlists
pub(in crate::cli) async fn new_key(
    session: &Session,
    input: &mut KeyInput,
    planned: &PlannedKey,
    of: Option<&str>,
) -> Result<NewKey, String> {
    let (form, place) = (Form::of(planned.format), &planned.location);
    let key = read_key(session, input, form, place, of, true).await;
    let key = key.map_err(|error| error.why)?;
    let key = Arc::new(wrapping_key(planned.format, &key)?);
    warn_of_swap(session);
    Ok(NewKey {
        format: planned.format,
        key,
    })
}

/// Asks a person at a terminal.
async fn prompt(
    session: &Session,
    input: &mut KeyInput,
    form: Form,
    of: Option<&str>,
    is_new: bool,
    again: bool,
) -> KeyBytes {
    let verb = if again { "Re-enter" } else { "Enter" };
    let new = if is_new { "new " } else { "" };
    let of = of.map_or_else(String::new, |name| format!(" for '{name}'"));
    session
        .out
        .text(format!("{verb} {new}{}{of}:", form.name()));
    // Who closed the output does not see the question; the answer counts all the same.
    let _ = session.out.flush().await;
    let key = input.next(form).await;
    session.out.text("\n");
    key
}

/// Loads the key of one dataset; says why not.
// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_crypto_load_key (words)
async fn load_one(
    session: &Session,
    input: &mut KeyInput,
    pool: &PoolHandle,
    name: &str,
    elsewhere: Option<&str>,
    check_only: bool,
) -> Result<(), Exit> {
    let fail = |why: &str| {
        session.out.error(format!("Key load error: {why}"));
        Exit(255)
    };
    let info = match pool.key_info(name).await {
        Ok(Some(info)) => info,
        Ok(None) => return Err(fail(&format!("'{name}' is not encrypted."))),
        Err(error) => return Err(fail(&error.to_string())),
    };
    if info.root != name {
        return Err(fail(&format!(
            "Keys must be loaded for encryption root of '{name}' ({}).",
            info.root
        )));
    }
    if info.loaded && !check_only {
        return Err(fail(&format!("Key already loaded for '{name}'.")));
    }
    let keylocation = match elsewhere {
        Some(elsewhere) => elsewhere.to_owned(),
        None => keylocation_of(pool, name).await,
    };
    let form = Form::of(info.format);
    let mut failed = Ok(());
    for _ in 0..ATTEMPTS {
        let key = match read_key(session, input, form, &keylocation, Some(name), false).await {
            Ok(key) => key,
            Err(error) if error.may_retry => {
                failed = Err(fail(&error.why));
                continue;
            }
            Err(error) => return Err(fail(&error.why)),
        };
        let key = wrapping_key(info.format, &key).map_err(|why| fail(&why))?;
        match pool.load_key(name, key, check_only).await {
            Ok(()) => {
                warn_of_swap(session);
                return Ok(());
            }
            Err(error) => {
                failed = Err(fail(&error.to_string()));
                let wrong = matches!(error, EngineError::WrongKey(_));
                if !wrong || !session.caller.terminal || keylocation != "prompt" {
                    return failed;
                }
            }
        }
    }
    failed
}

async fn keylocation_of(pool: &PoolHandle, name: &str) -> String {
    let query = PropertyQuery::Named(vec!["keylocation".to_owned()]);
    let info = pool.dataset(name, &query).await.ok();
    let value = info.and_then(|info| shown(&info, "keylocation", true));
    value.map_or_else(String::new, |(value, _)| value)
}

/// What `load-key` and `unload-key` are told.
#[derive(Default)]
struct Options {
    every: bool,
    recursive: bool,
    check_only: bool,
    elsewhere: Option<String>,
}

/// `zfs load-key`.
pub(super) async fn load_keys(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.read_options(arguments, |_, option| {
        match option {
            LoadOption::All => options.every = true,
            LoadOption::Recursive => options.recursive = true,
            LoadOption::CheckOnly => options.check_only = true,
            LoadOption::Location(place) => options.elsewhere = Some(place),
        }
        Ok(())
    })?;
    load_or_unload(session, options, &operands, true).await
}

/// `zfs unload-key`.
pub(super) async fn unload_keys(session: &Session, arguments: &[String]) -> Outcome {
    let mut options = Options::default();
    let operands = session.read_options(arguments, |_, option| {
        match option {
            UnloadOption::All => options.every = true,
            UnloadOption::Recursive => options.recursive = true,
        }
        Ok(())
    })?;
    load_or_unload(session, options, &operands, false).await
}

async fn load_or_unload(
    session: &Session,
    mut options: Options,
    operands: &[String],
    loads: bool,
) -> Outcome {
    if !options.every && operands.is_empty() {
        return Err(session.misuse("Missing dataset argument or -a option"));
    }
    if options.every && !operands.is_empty() {
        return Err(session.misuse("Cannot specify dataset with -a option"));
    }
    options.recursive |= options.every;
    let elsewhere = options.elsewhere.as_deref();
    if options.recursive && elsewhere.is_some_and(|place| place != "prompt") {
        return Err(session.misuse("alternate keylocation may only be 'prompt' with -r or -a"));
    }
    let (chosen, missing) = datasets(session, operands, options.recursive).await;
    let mut input = KeyInput::new(session);
    let (mut attempted, mut failed) = (0_u32, 0_u32);
    for (pool, info) in chosen {
        let value = |property| shown(&info, property, true).map_or_else(String::new, |v| v.0);
        let in_the_end = if loads { "available" } else { "unavailable" };
        if options.recursive
            && (value("encryptionroot") != info.name || value("keystatus") == in_the_end)
        {
            continue;
        }
        attempted += 1;
        let done = if loads {
            let check_only = options.check_only;
            load_one(
                session, &mut input, &pool, &info.name, elsewhere, check_only,
            )
            .await
        } else {
            unload_one(session, &pool, &info.name).await
        };
        failed += u32::from(done.is_err());
    }
    if options.check_only || (options.recursive && attempted != 0) {
        let done = match (loads, options.check_only) {
            (true, true) => "verified",
            (true, false) => "loaded",
            (false, _) => "unloaded",
        };
        let succeeded = attempted - failed;
        session.out.line(format!(
            "{succeeded} / {attempted} key(s) successfully {done}"
        ));
    }
    if attempted > failed && !options.check_only {
        session.appliance.datasets_changed().await;
    }
    match (failed, missing) {
        (0, false) => Ok(()),
        (0, true) => Err(Exit(1)),
        _ => Err(Exit(255)),
    }
}

/// The file systems and volumes a command is for, each with its pool.
async fn datasets(
    session: &Session,
    names: &[String],
    recursive: bool,
) -> (Vec<(PoolHandle, DatasetInfo)>, bool) {
    let selection = Selection {
        names,
        depth: (!recursive).then_some(0),
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        limited: false,
        list_snapshots: false,
    };
    let (found, missing) = select(session, &selection, &key_query()).await;
    let mut with_pools = Vec::with_capacity(found.len());
    for info in found {
        if let Ok(pool) = session.appliance.pool_of(&info.name).await {
            with_pools.push((pool, info));
        }
    }
    (with_pools, missing)
}

fn key_query() -> PropertyQuery {
    let names = ["encryptionroot", "keystatus"];
    PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

/// Unloads the key of one dataset; says why not.
// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_crypto_unload_key (words)
pub(super) async fn unload_one(
    session: &Session,
    pool: &PoolHandle,
    name: &str,
) -> Result<(), Exit> {
    let fail = |why: &str| {
        session.out.error(format!("Key unload error: {why}"));
        Exit(255)
    };
    let info = match pool.key_info(name).await {
        Ok(Some(info)) => info,
        Ok(None) => return Err(fail(&format!("'{name}' is not encrypted."))),
        Err(error) => return Err(fail(&error.to_string())),
    };
    if info.root != name {
        return Err(fail(&format!(
            "Keys must be unloaded for encryption root of '{name}' ({}).",
            info.root
        )));
    }
    if !info.loaded {
        return Err(fail(&format!("Key already unloaded for '{name}'.")));
    }
    if is_mounted(session, pool, name).await {
        return Err(fail(&format!("'{name}' is busy.")));
    }
    match pool.unload_key(name).await {
        Ok(()) => Ok(()),
        Err(EngineError::Busy(_)) => Err(fail(&format!("'{name}' is busy."))),
        Err(error) => Err(fail(&error.to_string())),
    }
}

/// Unloads the key of a dataset that was unmounted, if it is an encryption root whose key is loaded.
// OpenZFS: lib/libzfs/libzfs_mount.c, zfs_unmount
pub(super) async fn unload_root(session: &Session, name: &str) -> Outcome {
    let Ok(pool) = session.appliance.pool_of(name).await else {
        return Ok(());
    };
    match pool.key_info(name).await {
        Ok(Some(info)) if info.loaded && info.root == name => {
            unload_one(session, &pool, name).await?;
            session.appliance.datasets_changed().await;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a file system that needs the key of `root` is mounted.
async fn is_mounted(session: &Session, pool: &PoolHandle, root: &str) -> bool {
    let mounted = session.appliance.mounts().list();
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    };
    let all = pool.datasets(&filter, &key_query()).await;
    all.unwrap_or_default().iter().any(|info| {
        let of_root = shown(info, "encryptionroot", true).is_some_and(|(value, _)| value == root);
        of_root && mounted.iter().any(|(dataset, _)| *dataset == info.name)
    })
}

/// Loads the key that a dataset needs before it is mounted, if that is asked for and not done yet.
pub(super) async fn load_for(
    session: &Session,
    input: &mut KeyInput,
    pool: &PoolHandle,
    name: &str,
) -> Outcome {
    match pool.key_info(name).await {
        Ok(Some(info)) if !info.loaded => {
            load_one(session, input, pool, &info.root, None, false).await
        }
        _ => Ok(()),
    }
}

/// Loads the key of an encryption root unless it is loaded.
pub(super) async fn load_itself(
    session: &Session,
    input: &mut KeyInput,
    pool: &PoolHandle,
    name: &str,
) -> Outcome {
    match pool.key_info(name).await {
        Ok(Some(info)) if info.loaded => Ok(()),
        _ => load_one(session, input, pool, name, None, false).await,
    }
}

/// Loads the keys of a pool that was imported with `-l`, as far as they can be had.
// OpenZFS: lib/libzfs/libzfs_crypto.c, zfs_crypto_attempt_load_keys
pub(in crate::cli) async fn load_all(session: &Session, pool: &PoolHandle) -> Outcome {
    let mut input = KeyInput::new(session);
    let root = [pool.name().to_owned()];
    let (found, _) = datasets(session, &root, true).await;
    let (mut attempted, mut failed) = (0_u32, 0_u32);
    for (pool, info) in found {
        let value = |property| shown(&info, property, true).map_or_else(String::new, |v| v.0);
        if value("encryptionroot") != info.name || value("keystatus") == "available" {
            continue;
        }
        attempted += 1;
        let loaded = load_one(session, &mut input, &pool, &info.name, None, false).await;
        failed += u32::from(loaded.is_err());
    }
    let succeeded = attempted - failed;
    session.out.line(format!(
        "{succeeded} / {attempted} keys successfully loaded"
    ));
    if failed == 0 { Ok(()) } else { Err(Exit(1)) }
}

/// Whether a dataset is encrypted and its key is not loaded.
pub(super) async fn lacks_key(pool: &PoolHandle, name: &str) -> bool {
    matches!(pool.key_info(name).await, Ok(Some(info)) if !info.loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(text: &[u8], form: Form) -> KeyBytes {
        first_key(form, Zeroizing::new(text.to_vec()))
    }

    #[test]
    fn a_newline_ends_what_is_text_and_is_part_of_what_is_raw() {
        assert_eq!(*key_of(b"secret\nmore", Form::Passphrase), b"secret");
        assert_eq!(*key_of(b"secret", Form::Passphrase), b"secret");
        assert_eq!(*key_of(b"secret\r\n", Form::Passphrase), b"secret\r");
        assert_eq!(*key_of(b"\n", Form::Hex), b"");
        let raw = [b'\n'; 40];
        assert_eq!(key_of(&raw, Form::Raw).len(), 33);
        assert_eq!(key_of(&raw[..32], Form::Raw).len(), 32);
    }

    #[test]
    fn keys_of_the_wrong_length_are_named() {
        let check = |form, key: &[u8], is_new| check(form, key, is_new).err().unwrap_or_default();
        assert_eq!(
            check(Form::Raw, &[0; 31], false),
            "Raw key too short (expected 32)."
        );
        assert_eq!(
            check(Form::Raw, &[0; 33], false),
            "Raw key too long (expected 32)."
        );
        assert_eq!(
            check(Form::Hex, &[b'a'; 63], false),
            "Hex key too short (expected 64)."
        );
        assert_eq!(
            check(Form::Hex, &[b'g'; 64], false),
            "Invalid hex character detected."
        );
        assert_eq!(check(Form::Hex, &[b'F'; 64], false), "");
        assert_eq!(check(Form::Passphrase, b"short", false), "");
        assert_eq!(
            check(Form::Passphrase, b"short", true),
            "Passphrase too short (min 8)."
        );
        assert_eq!(
            check(Form::Passphrase, &[b'x'; 513], true),
            "Passphrase too long (max 512)."
        );
    }

    #[test]
    fn locations_are_taken_apart() {
        let refused = |text| location(text).err().unwrap_or_default();
        assert!(matches!(location("prompt"), Ok(Location::Prompt)));
        assert!(
            matches!(location("file:///a/b"), Ok(Location::File(path)) if path == Path::new("/a/b"))
        );
        assert!(matches!(location("https://host/key"), Ok(Location::Web(_))));
        assert_eq!(refused("ftp://host/key"), "URI scheme is not supported");
        assert_eq!(refused("none"), "Invalid keylocation");
    }
}
