//! READDIR (RFC 7530, section 16.24). Cookies are the engine's, and stay valid while names come and go; names that lead to other
//! shares come behind all that is stored. `.` and `..` are not told.

use super::attribute::Described;
use super::bitmap::Bitmap;
use super::compound::{Compound, Done, FileTarget, Target};
use super::operation::Page;
use super::status::Status;
use super::{attribute, file};
use crate::nested::NESTED_COOKIE_FIRST;
use crate::xdr::Writer;
use engine::{Attr, DirEntry, FsError, FsStat, ListLimit};

/// The engine's cookie of `..`: a listing begins behind it.
const COOKIE_PARENT: u64 = 2;
/// The most a listing answers at a time, in bytes, whatever the client asks for.
const BYTES_MAX: usize = 1 << 20;
/// "Follows", cookie, the length of the name.
const ENTRY_BYTES: usize = 4 + 8 + 4;
/// What the attributes of an entry take, roughly: how many entries are asked of the engine for depends on it.
const ATTRIBUTES_BYTES: usize = 120;

/// An entry as it is told: its name, cookie, and the file with its attributes, if they can be had.
struct Entry {
    name: Vec<u8>,
    cookie: u64,
    file: Option<(Attr, Vec<u8>, Option<u64>)>,
    /// Its list, if asked for and there is one.
    list: Option<Vec<u8>>,
    /// Another client writes it: what it is like is told when it is asked for alone.
    written_elsewhere: bool,
}

impl Compound<'_> {
    pub(super) async fn read_directory(&mut self, page: &Page, bits: Bitmap) -> Done {
        let dir = self.target()?.clone();
        let clamp = |bytes: u32| usize::try_from(bytes).unwrap_or(BYTES_MAX).min(BYTES_MAX);
        let (names_max, reply_max) = (clamp(page.names_bytes), clamp(page.reply_bytes));
        // RFC 7530, section 16.24.4: cookies 1 and 2 are never given, and 0 comes without a verifier.
        if page.cookie == 1 || page.cookie == 2 {
            return Err(Status::BadCookie.into());
        }
        if page.cookie == 0 && page.verifier != 0 {
            return Err(Status::BadCookie.into());
        }
        attribute::check_readable(bits)?;
        let (entries, eof) = match &dir {
            Target::File(file) => self.stored_entries(file, page, reply_max).await?,
            Target::Pseudo(_) => (Vec::new(), true),
        };
        let mut entries = entries;
        if let (Target::File(dir), true) = (&dir, attribute::needs_list(bits)) {
            for entry in &mut entries {
                if let Some((attr, _, _)) = &entry.file {
                    entry.list = dir.sibling(attr.id).list().await;
                }
            }
        }
        if eof {
            self.add_crossings(&dir, page.cookie, &mut entries).await;
        } else {
            let crossings = self.crossings(&dir).await;
            entries.retain(|entry| !crossings.iter().any(|(name, _)| *name == entry.name));
        }
        let stat = match &dir {
            Target::File(file) if attribute::needs_stat(bits) => {
                Some(file.caller.fs.statfs().await?)
            }
            _ => None,
        };
        self.write_entries(&entries, eof, (names_max, reply_max), bits, stat.as_ref())
    }

    /// Lists what is stored in a directory.
    async fn stored_entries(
        &self,
        dir: &FileTarget,
        page: &Page,
        reply_max: usize,
    ) -> Result<(Vec<Entry>, bool), Status> {
        if page.cookie >= NESTED_COOKIE_FIRST {
            return Ok((Vec::new(), true));
        }
        let limit = ListLimit {
            entries: reply_max / ENTRY_BYTES + 1,
            bytes: reply_max,
            entry_overhead_bytes: ENTRY_BYTES + ATTRIBUTES_BYTES,
            attrs: true,
        };
        let (fs, cred) = (&dir.caller.fs, &dir.caller.cred);
        let cookie = page.cookie.max(COOKIE_PARENT);
        let listing = match fs.readdir(dir.handle.file, cookie, limit, cred).await {
            Ok(listing) => listing,
            // Not even one entry has room.
            Err(FsError::Invalid) => return Err(Status::TooSmall),
            Err(error) => {
                // RFC 7530, section 16.24.5 has no NFS4ERR_SYMLINK.
                return Err(error.into());
            }
        };
        let holder = self.holder();
        let is_written = |attr: &Attr| dir.writer_of(attr.id, holder).is_some();
        let told = |entry: DirEntry| Entry {
            written_elsewhere: entry.attr.as_ref().is_some_and(is_written),
            name: entry.name,
            cookie: entry.cookie,
            // A snapshot not looked up yet: what it has, and by which handle, tells LOOKUP.
            file: entry
                .attr
                .filter(|attr| !engine::is_unopened(attr.id))
                .map(|attr| {
                    let handle = dir.sibling(attr.id).handle.encode();
                    (attr, handle, None)
                }),
            list: None,
        };
        Ok((listing.entries.into_iter().map(told).collect(), listing.eof))
    }

    /// Adds the names that lead to other shares, which hide stored ones of the same name.
    async fn add_crossings(&self, dir: &Target, after: u64, entries: &mut Vec<Entry>) {
        let crossings = self.crossings(dir).await;
        entries.retain(|entry| !crossings.iter().any(|(name, _)| *name == entry.name));
        for ((name, target), cookie) in crossings.into_iter().zip(NESTED_COOKIE_FIRST + 1..) {
            if cookie <= after {
                continue;
            }
            let handle = target.handle();
            let file = match &target {
                Target::Pseudo(node) => Some((self.pseudo_attr(*node), handle, None)),
                Target::File(file) => {
                    let node = self
                        .server
                        .pseudo()
                        .of_export(file.handle.dataset)
                        .map(|(id, _)| id);
                    match target.check_flavour() {
                        Ok(()) => file.attr().await.ok().map(|attr| (attr, handle, node)),
                        // What is stored there is not for the caller to know.
                        Err(_) => node.map(|id| (self.pseudo_attr(id), handle, Some(id))),
                    }
                }
            };
            entries.push(Entry {
                name,
                cookie,
                file,
                list: None,
                written_elsewhere: false,
            });
        }
    }

    fn write_entries(
        &mut self,
        entries: &[Entry],
        eof: bool,
        (names_max, reply_max): (usize, usize),
        bits: Bitmap,
        stat: Option<&FsStat>,
    ) -> Done {
        let (minor, lease_seconds) = (self.minor, self.lease_seconds());
        let w = self.w();
        let begin = w.len();
        w.u64(0);
        let (mut names, mut taken) = (0, 0);
        for entry in entries {
            let before = w.len();
            w.bool(true).u64(entry.cookie).opaque(&entry.name);
            let bits = match entry.written_elsewhere {
                true => bits.without(attribute::OF_WRITER),
                false => bits,
            };
            match &entry.file {
                Some((attr, handle, mounted_on)) => Described {
                    attr,
                    handle,
                    mounted_on: *mounted_on,
                    stat,
                    list: entry.list.as_deref(),
                    locations: None,
                    minor,
                    lease_seconds,
                }
                .write(w, bits),
                None => write_unknown(w, bits),
            }
            names += ENTRY_BYTES + entry.name.len().next_multiple_of(4);
            // What ends the list has room, too.
            let whole = w.len() - begin + 8;
            if whole > reply_max || (taken > 0 && names_max > 0 && names > names_max) {
                w.truncate(before);
                break;
            }
            taken += 1;
        }
        if taken == 0 && (!entries.is_empty() || reply_max < 16) {
            return Err(Status::TooSmall.into());
        }
        w.bool(false).bool(eof && taken == entries.len());
        Ok(())
    }
}

/// Writes the attributes of a file that cannot be had: that they cannot, where the client asks for that.
fn write_unknown(w: &mut Writer, bits: Bitmap) {
    let error = Bitmap::of(&[attribute::number::RDATTR_ERROR]);
    let told = bits.intersection(error);
    told.write(w);
    let mut values = Writer::default();
    if !told.is_empty() {
        values.u32(Status::Delay as u32);
    }
    w.opaque(&values.into_bytes());
}

/// Checks a name that is to be made or removed in the current directory: names that lead to shares are not stored there.
impl Compound<'_> {
    pub(super) async fn check_stored_name(
        &self,
        dir: &FileTarget,
        name: &[u8],
    ) -> Result<(), Status> {
        file::check_name(name)?;
        match self.crossing(dir, name).await {
            Some(_) => Err(Status::Exists),
            None => Ok(()),
        }
    }
}
