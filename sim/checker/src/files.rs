//! File systems: attributes, directories and link counts, the unlinked set, space by owner; and volumes.

use std::collections::BTreeMap;

use ondisk::sa::{self, attr};
use ondisk::znode::{DirEntryValue, master_keys, mode, znode_flags};
use ondisk::{DnodePhys, ObjectType, acl, bytes, dnode_flags, objset_flags};

use super::blocks::{Bookmark, Checker};
use super::objset::{GROUP_USED, PROJECT_USED, Tree, USER_USED};
use super::report::Kind;
use super::zap::Zap;

/// The attributes of one file.
#[derive(Debug, Clone, Default)]
struct File {
    mode: u64,
    size: u64,
    uid: u64,
    gid: u64,
    parent: u64,
    flags: u64,
    links: u64,
    project: u64,
    xattr_dir: u64,
    symlink_len: Option<usize>,
}

/// How files are laid out in a dataset.
struct Layouts {
    lengths: BTreeMap<u16, u16>,
    layouts: BTreeMap<u16, Vec<u16>>,
}

/// What directories say about one object.
#[derive(Debug, Default)]
struct References {
    entries: u64,
    subdirs: u64,
    parent: u64,
}

impl Checker<'_> {
    /// Checks a file system (or a snapshot of one).
    pub(super) fn check_files(&mut self, tree: &Tree, name: &str) {
        if tree.refs.first().is_some_and(|r| r.bp.uses_crypt()) {
            self.report.note(
                Kind::NotChecked,
                format!("{name} is encrypted: its files are not judged"),
            );
            return;
        }
        let Some(master) = self.read_zap(tree, 1) else {
            return;
        };
        let (Some(root), Some(version)) = (
            master.u64(master_keys::ROOT),
            master.u64(master_keys::VERSION),
        ) else {
            self.report.error(
                Kind::Directory,
                format!("{name}: the master node has no root or version"),
            );
            return;
        };
        if version != ondisk::znode::ZPL_VERSION {
            self.report.note(
                Kind::NotChecked,
                format!("{name}: file system version {version}"),
            );
            return;
        }
        let Some(layouts) = self.read_layouts(tree, &master, name) else {
            return;
        };
        let mut files = BTreeMap::new();
        for (object, dnode) in &tree.objects {
            if dnode.bonus_type == ObjectType::SA {
                if let Some(file) = self.read_file(tree, *object, dnode, &layouts, name) {
                    self.check_file(tree, *object, dnode, &file, name);
                    files.insert(*object, file);
                }
            } else if dnode.object_type == ObjectType::DIRECTORY_CONTENTS
                || dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS
            {
                let text = format!("{name}: object {object} is a file without attributes");
                self.report.error(Kind::SystemAttributes, text);
            }
        }
        self.report.files += files.len() as u64;
        self.check_directories(tree, name, root, &master, &files);
        self.check_user_accounting(tree, name, &files);
    }

    fn read_layouts(&mut self, tree: &Tree, master: &Zap, name: &str) -> Option<Layouts> {
        let sa_master = self.read_zap(tree, master.u64(master_keys::SA_ATTRS)?)?;
        let mut out = Layouts {
            lengths: BTreeMap::new(),
            layouts: BTreeMap::new(),
        };
        let Some(registry) = sa_master.u64(sa::REGISTRY_KEY) else {
            return Some(out);
        };
        for (_, value) in self.read_zap(tree, registry)?.pairs() {
            let (number, length) = sa::decode_registry_value(value);
            out.lengths.insert(number, length);
        }
        let dense = out
            .lengths
            .keys()
            .copied()
            .eq((0..out.lengths.len()).map(|n| bytes::low16(n as u64)));
        for (key, value) in self
            .read_zap(tree, sa_master.u64(sa::LAYOUTS_KEY)?)?
            .entries
        {
            let number = String::from_utf8_lossy(&key).parse::<u16>().unwrap_or(0);
            out.layouts.insert(
                number,
                value.ints.iter().map(|i| bytes::low16(*i)).collect(),
            );
        }
        let stored = (2..).take(out.layouts.len());
        if !dense || !out.layouts.keys().copied().eq(stored) {
            self.report.error(
                Kind::SystemAttributes,
                format!("{name}: attribute or layout numbers are not dense"),
            );
        }
        Some(out)
    }

    fn read_file(
        &mut self,
        tree: &Tree,
        object: u64,
        dnode: &DnodePhys,
        layouts: &Layouts,
        name: &str,
    ) -> Option<File> {
        let mut file = File::default();
        let spill = dnode.spill.and_then(|bp| {
            self.load(
                &bp,
                Bookmark {
                    objset: tree.id,
                    object,
                    level: 0,
                    block: u64::MAX,
                },
            )
        });
        let buffers = [
            Some(dnode.bonus.as_slice()),
            spill.as_ref().map(|s| s.as_slice()),
        ];
        let mut aces = (0, 0);
        for buf in buffers.into_iter().flatten() {
            let found = sa::SaHeader::decode(buf).and_then(|h| {
                let layout = layouts.layouts.get(&h.layout);
                let layout = layout.ok_or(ondisk::DecodeError::new(
                    "system attribute layout number",
                    4,
                ))?;
                let length_of = |n| layouts.lengths.get(&n).copied();
                sa::attributes(buf, layout, length_of)?.collect::<Result<Vec<_>, _>>()
            });
            let found = match found {
                Ok(f) => f,
                Err(e) => {
                    self.report.error(
                        Kind::SystemAttributes,
                        format!("{name}: object {object}: {e}"),
                    );
                    return None;
                }
            };
            for (number, range) in &found {
                let value = sa::bytes_of(buf, range);
                let word = bytes::u64_at(value, 0);
                match *number {
                    attr::MODE => file.mode = word,
                    attr::SIZE => file.size = word,
                    attr::UID => file.uid = word,
                    attr::GID => file.gid = word,
                    attr::PARENT => file.parent = word,
                    attr::FLAGS => file.flags = word,
                    attr::LINKS => file.links = word,
                    attr::PROJID => file.project = word,
                    attr::XATTR => file.xattr_dir = word,
                    attr::SYMLINK => file.symlink_len = Some(value.len()),
                    attr::DACL_COUNT => aces.0 = word,
                    attr::DACL_ACES => {
                        let count = bytes::index(aces.0);
                        match acl::decode(value, count) {
                            Ok(list) if acl::encode(&list).len() == value.len() => aces.1 = aces.0,
                            _ => {
                                let text = format!(
                                    "{name}: object {object}: access list of {count} is malformed"
                                );
                                self.report.error(Kind::SystemAttributes, text);
                            }
                        }
                    }
                    attr::DXATTR => {
                        if let Err(e) = ondisk::NvList::decode(value) {
                            let text = format!("{name}: object {object}: extended attributes: {e}");
                            self.report.error(Kind::SystemAttributes, text);
                        }
                    }
                    _ => {}
                }
            }
        }
        Some(file)
    }

    /// Checks what one file says about itself.
    fn check_file(&mut self, tree: &Tree, object: u64, dnode: &DnodePhys, file: &File, name: &str) {
        let mut bad = |what: String| {
            self.report.error(
                Kind::SystemAttributes,
                format!("{name}: object {object}: {what}"),
            );
        };
        let is_dir = file.mode & mode::TYPE_MASK == mode::DIRECTORY;
        if is_dir != (dnode.object_type == ObjectType::DIRECTORY_CONTENTS) {
            bad(format!(
                "mode {:o} and object type {} contradict",
                file.mode, dnode.object_type
            ));
        }
        if file.mode & mode::TYPE_MASK == mode::SYMLINK
            && file.symlink_len.is_some_and(|l| l as u64 != file.size)
        {
            bad(format!(
                "symlink of {:?} bytes has size {}",
                file.symlink_len, file.size
            ));
        }
        if !is_dir && let Some(last) = tree.last_block.get(&object) {
            let end = file.size.div_ceil(dnode.data_block_size());
            if *last >= end.max(1) {
                bad(format!("block {last} is beyond its size {}", file.size));
            }
        }
        if file.parent == 0 {
            bad("parent is 0".to_owned());
        }
    }

    fn check_directories(
        &mut self,
        tree: &Tree,
        name: &str,
        root: u64,
        master: &Zap,
        files: &BTreeMap<u64, File>,
    ) {
        let mut refs: BTreeMap<u64, References> = BTreeMap::new();
        let norm = expected_norm(master);
        for (object, file) in files {
            if file.mode & mode::TYPE_MASK != mode::DIRECTORY {
                continue;
            }
            let Some(zap) = self.read_zap(tree, *object) else {
                continue;
            };
            let mut bad = |what: String| {
                let text = format!("{name}: directory {object}: {what}");
                self.report.error(Kind::Directory, text);
            };
            if zap.norm_flags != norm {
                bad(format!(
                    "normalization flags are {:#x}, the file system's {norm:#x}",
                    zap.norm_flags
                ));
            }
            if file.size != zap.entries.len() as u64 + 2 {
                bad(format!(
                    "size is {}, it has {} entries",
                    file.size,
                    zap.entries.len()
                ));
            }
            for (entry, value) in &zap.entries {
                let shown = String::from_utf8_lossy(entry);
                let [value] = value.ints.as_slice() else {
                    bad(format!("value of {shown:?} is not one number"));
                    continue;
                };
                let target = DirEntryValue::decode(*value);
                let Some(inner) = files.get(&target.object) else {
                    bad(format!(
                        "{shown:?} names object {}, which is not there",
                        target.object
                    ));
                    continue;
                };
                if u64::from(target.file_type) != inner.mode >> 12 && target.file_type != 0 {
                    bad(format!(
                        "{shown:?} says type {}, mode is {:o}",
                        target.file_type, inner.mode
                    ));
                }
                let r = refs.entry(target.object).or_default();
                r.entries += 1;
                r.parent = *object;
                if inner.mode & mode::TYPE_MASK == mode::DIRECTORY {
                    refs.entry(*object).or_default().subdirs += 1;
                }
            }
        }
        let owners: BTreeMap<u64, u64> = files
            .iter()
            .filter(|(_, f)| f.xattr_dir != 0)
            .map(|(o, f)| (f.xattr_dir, *o))
            .collect();
        let unlinked = self.read_unlinked(tree, name, master, files);
        for (object, file) in files {
            let r = refs.remove(object).unwrap_or_default();
            let is_dir = file.mode & mode::TYPE_MASK == mode::DIRECTORY;
            let is_xattr_dir = is_dir && file.flags & znode_flags::XATTR != 0;
            let want = if is_dir { 2 + r.subdirs } else { r.entries };
            let waiting = unlinked.contains_key(object);
            let mut bad = |kind, what: String| {
                self.report
                    .error(kind, format!("{name}: object {object}: {what}"));
            };
            if waiting {
                if r.entries > 0 || file.links != 0 && !is_xattr_dir {
                    bad(
                        Kind::Unlinked,
                        format!(
                            "is to be removed, but has {} entries, links {}",
                            r.entries, file.links
                        ),
                    );
                }
                continue;
            }
            if file.links != want {
                bad(
                    Kind::LinkCount,
                    format!("links are {}, should be {want}", file.links),
                );
            }
            if *object == root {
                if file.parent != root || r.entries != 0 {
                    bad(
                        Kind::Directory,
                        "the root is not its own parent, or is in a directory".to_owned(),
                    );
                }
                continue;
            }
            if is_xattr_dir {
                let owner = owners.get(object).copied().unwrap_or(0);
                // The owner may itself wait for removal.
                if owner != file.parent || r.entries != 0 {
                    bad(
                        Kind::Directory,
                        format!(
                            "attribute directory of {owner} says its owner is {}",
                            file.parent
                        ),
                    );
                }
            } else if r.entries == 0 {
                bad(
                    Kind::Directory,
                    "is in no directory and not to be removed".to_owned(),
                );
            } else if is_dir && (r.entries != 1 || r.parent != file.parent) {
                let text = format!(
                    "directory has {} entries, in {}, its parent is {}",
                    r.entries, r.parent, file.parent
                );
                bad(Kind::Directory, text);
            }
        }
    }

    fn read_unlinked(
        &mut self,
        tree: &Tree,
        name: &str,
        master: &Zap,
        files: &BTreeMap<u64, File>,
    ) -> BTreeMap<u64, ()> {
        let Some(object) = master.u64(master_keys::DELETE_QUEUE) else {
            self.report
                .error(Kind::Unlinked, format!("{name}: no unlinked set"));
            return BTreeMap::new();
        };
        let mut out = BTreeMap::new();
        for (key, value) in self.read_zap(tree, object).iter().flat_map(Zap::pairs) {
            if !files.contains_key(&value) || key != format!("{value:x}") {
                self.report.error(
                    Kind::Unlinked,
                    format!("{name}: the unlinked set has {key} = {value}"),
                );
            }
            out.insert(value, ());
        }
        out
    }

    fn check_user_accounting(&mut self, tree: &Tree, name: &str, files: &BTreeMap<u64, File>) {
        let flags = tree.phys.flags;
        if flags & objset_flags::USER_ACCOUNTING_COMPLETE == 0 {
            return;
        }
        let mut want: [BTreeMap<String, u64>; 3] = Default::default();
        for (object, dnode) in &tree.objects {
            let Some(file) = files.get(object) else {
                continue;
            };
            let with_project = file.flags & znode_flags::PROJID != 0;
            let ids = [
                file.uid,
                file.gid,
                if with_project { file.project } else { 0 },
            ];
            for (map, id) in want.iter_mut().zip(ids) {
                if dnode.flags & dnode_flags::USERUSED_ACCOUNTED != 0 {
                    *map.entry(format!("{id:x}")).or_default() += 512 + dnode.used_bytes();
                }
                let is_counted = dnode.flags & dnode_flags::USEROBJUSED_ACCOUNTED != 0;
                if !is_counted && flags & objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE != 0 {
                    let text = format!("{name}: object {object} is not counted");
                    self.report.error(Kind::UserAccounting, text);
                }
                if is_counted {
                    *map.entry(format!("obj-{id:x}")).or_default() += 1;
                }
            }
        }
        let [user, group, project] = want;
        let kinds = [
            ("user", USER_USED, user, &tree.phys.user_used, 0),
            ("group", GROUP_USED, group, &tree.phys.group_used, 0),
            (
                "project",
                PROJECT_USED,
                project,
                &tree.phys.project_used,
                objset_flags::PROJECT_QUOTA_COMPLETE,
            ),
        ];
        for (what, object, want, dnode, flag) in kinds {
            if flags & flag != flag {
                continue;
            }
            let have: BTreeMap<String, u64> = if dnode.is_free() {
                BTreeMap::new()
            } else {
                self.read_zap(tree, object)
                    .iter()
                    .flat_map(Zap::pairs)
                    .collect()
            };
            for key in want
                .keys()
                .chain(have.keys().filter(|k| !want.contains_key(*k)))
            {
                if want.get(key) != have.get(key) {
                    let text = format!(
                        "{name}: {what} {key}: counted {:?}, is {:?}",
                        have.get(key),
                        want.get(key)
                    );
                    self.report.error(Kind::UserAccounting, text);
                }
            }
        }
    }

    /// Checks a volume (or a snapshot of one).
    pub(super) fn check_volume(&mut self, tree: &Tree, name: &str) {
        let data = tree
            .objects
            .get(&1)
            .filter(|d| d.object_type == ObjectType::ZVOL);
        let Some(data) = data else {
            self.report
                .error(Kind::Objset, format!("{name}: object 1 is not a volume"));
            return;
        };
        if tree.refs.first().is_some_and(|r| r.bp.uses_crypt()) {
            return;
        }
        let size = self.read_zap(tree, 2).and_then(|z| z.u64("size"));
        let block = data.data_block_size();
        let last = tree.last_block.get(&1).copied().unwrap_or(0);
        match size {
            Some(size) if size.is_multiple_of(block) && (last * block < size || last == 0) => {}
            _ => {
                let text =
                    format!("{name}: size is {size:?}, blocks of {block}, the last is {last}");
                self.report.error(Kind::Objset, text);
            }
        }
    }
}

/// Normalization flags of directories, by the file system's properties.
fn expected_norm(master: &Zap) -> u64 {
    let form = master.u64(master_keys::NORMALIZATION).unwrap_or(0);
    let case = master.u64(master_keys::CASESENSITIVITY).unwrap_or(0);
    form | if case == 0 {
        0
    } else {
        ondisk::zap::norm::TOUPPER
    }
}
