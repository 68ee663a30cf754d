//! What POSIX and OpenZFS say, case by case.

use runtime::IoBuf;
use zpl::{
    Access, CaseSensitivity, CreateMode, Cred, DeviceNumber, FileId, FileType, FlagsChange, Fs,
    FsError, RootProps, SeekTarget, SetAttr, SetTime, Stability, Timestamp, XattrMode, flags,
};

use crate::model::all_entries;
use crate::rig::{self, Rig};

fn user(uid: u32) -> Cred {
    Cred {
        uid,
        gid: uid,
        groups: vec![uid + 1000],
        opened: false,
        holder: 0,
    }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

pub(crate) async fn file(fs: &Fs, dir: FileId, name: &str, bits: u32, cred: &Cred) -> FileId {
    let made = fs
        .create(dir, name.as_bytes(), CreateMode::Guarded, &mode(bits), cred)
        .await;
    made.expect("creates").file.id
}

async fn dir(fs: &Fs, parent: FileId, name: &str, bits: u32, cred: &Cred) -> FileId {
    fs.mkdir(parent, name.as_bytes(), &mode(bits), cred)
        .await
        .expect("makes")
        .file
        .id
}

async fn write(
    fs: &Fs,
    id: FileId,
    offset: u64,
    bytes: &[u8],
    cred: &Cred,
) -> Result<u64, FsError> {
    let data = IoBuf::copy_from(bytes);
    fs.write(id, offset, data, Stability::Unstable, cred)
        .await
        .map(|w| w.count)
}

pub(crate) fn check<F: Future<Output = ()>>(main: impl FnOnce(Fs, FileId) -> F) {
    rig::run(7, RootProps::default(), |_, mut rig: Rig| async move {
        let fs = rig.fs.clone();
        let root = fs.root();
        main(fs, root).await;
        rig.close().await;
    });
}

#[test]
fn a_new_file_system_has_a_root_and_nothing_else() {
    check(|fs, root| async move {
        let attr = fs.getattr(root).await.expect("there");
        assert_eq!(
            (attr.mode, attr.links, attr.size, attr.parent),
            (0o755, 2, 2, root.object)
        );
        let listing = fs
            .readdir(root, 0, all_entries(10), &Cred::root())
            .await
            .expect("lists");
        let names: Vec<&[u8]> = listing.entries.iter().map(|e| e.name.as_slice()).collect();
        assert_eq!(names, [&b"."[..], b".."]);
        assert!(listing.eof);
        assert_eq!(
            fs.lookup(root, b"..", &Cred::root())
                .await
                .expect("itself")
                .id,
            root
        );
        assert_eq!(
            fs.lookup(root, b"nothing", &Cred::root()).await,
            Err(FsError::NotFound)
        );
    });
}

#[test]
fn permissions_decide() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let open = dir(&fs, root, "open", 0o777, &admin).await;
        let mine = file(&fs, open, "mine", 0o600, &user(1)).await;
        let attr = fs.getattr(mine).await.expect("there");
        assert_eq!((attr.uid, attr.gid), (1, 1));
        assert_eq!(
            write(&fs, mine, 0, b"x", &user(2)).await,
            Err(FsError::Access)
        );
        assert_eq!(
            fs.read(mine, 0, 1, &user(2)).await.err(),
            Some(FsError::Access)
        );
        let opened = Cred {
            opened: true,
            ..user(2)
        };
        assert_eq!(write(&fs, mine, 0, b"x", &opened).await, Ok(1));
        let got = fs
            .access(
                mine,
                Access::READ | Access::MODIFY | Access::EXECUTE,
                &user(1),
            )
            .await
            .expect("there");
        assert_eq!(got, Access::READ | Access::MODIFY);
        let closed = dir(&fs, root, "closed", 0o755, &admin).await;
        let made = fs
            .create(closed, b"f", CreateMode::Guarded, &mode(0o644), &user(1))
            .await;
        assert_eq!(made.err(), Some(FsError::Access));
        let hidden = dir(&fs, root, "hidden", 0o700, &admin).await;
        assert_eq!(
            fs.lookup(hidden, b"x", &user(1)).await,
            Err(FsError::Access)
        );
        // Only the owner changes the mode, and only to groups it is in.
        let chmod = fs.setattr(mine, &mode(0o777), None, &user(2)).await;
        assert_eq!(chmod.err(), Some(FsError::NotPermitted));
        let chgrp = |gid| SetAttr {
            gid: Some(gid),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(mine, &chgrp(5), None, &user(1)).await.err(),
            Some(FsError::NotPermitted)
        );
        assert!(fs.setattr(mine, &chgrp(1001), None, &user(1)).await.is_ok());
        let chown = SetAttr {
            uid: Some(2),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(mine, &chown, None, &user(1)).await.err(),
            Some(FsError::NotPermitted)
        );
        // Times: now needs write permission, others ownership.
        let now = SetAttr {
            mtime: Some(SetTime::Server),
            ..SetAttr::default()
        };
        let then = SetTime::Client(Timestamp {
            seconds: -5,
            nanoseconds: 7,
        });
        let old = SetAttr {
            mtime: Some(then),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(mine, &now, None, &user(2)).await.err(),
            Some(FsError::Access)
        );
        assert_eq!(
            fs.setattr(mine, &old, None, &user(2)).await.err(),
            Some(FsError::NotPermitted)
        );
        let change = fs
            .setattr(mine, &old, None, &user(1))
            .await
            .expect("the owner may");
        assert_eq!(
            change.after.mtime,
            Timestamp {
                seconds: -5,
                nanoseconds: 7
            }
        );
    });
}

#[test]
fn set_id_bits_do_not_survive_strangers() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let suid = file(&fs, root, "suid", 0o6777, &admin).await;
        write(&fs, suid, 0, b"x", &user(1))
            .await
            .expect("all may write");
        assert_eq!(fs.getattr(suid).await.expect("there").mode, 0o777);
        fs.setattr(suid, &mode(0o6755), None, &admin)
            .await
            .expect("root may");
        let chown = SetAttr {
            uid: Some(3),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(suid, &chown, None, &admin)
                .await
                .expect("root may")
                .after
                .mode,
            0o755
        );
        // A set-gid directory hands down its group, and the bit to directories.
        let shared = dir(&fs, root, "shared", 0o2777, &admin).await;
        let chgrp = SetAttr {
            gid: Some(77),
            mode: Some(0o2777),
            ..SetAttr::default()
        };
        fs.setattr(shared, &chgrp, None, &admin)
            .await
            .expect("root may");
        let inside = fs
            .getattr(file(&fs, shared, "f", 0o644, &user(1)).await)
            .await
            .expect("there");
        assert_eq!((inside.uid, inside.gid, inside.mode), (1, 77, 0o644));
        let below = fs
            .getattr(dir(&fs, shared, "d", 0o755, &user(1)).await)
            .await
            .expect("there");
        assert_eq!((below.gid, below.mode), (77, 0o2755));
        let stripped = fs
            .getattr(file(&fs, shared, "g", 0o2755, &user(1)).await)
            .await
            .expect("there");
        assert_eq!(stripped.mode, 0o755);
    });
}

#[test]
fn sticky_directories_protect() {
    check(|fs, root| async move {
        let tmp = dir(&fs, root, "tmp", 0o1777, &Cred::root()).await;
        file(&fs, tmp, "a", 0o666, &user(1)).await;
        file(&fs, tmp, "b", 0o666, &user(2)).await;
        assert_eq!(
            fs.remove(tmp, b"a", &user(2)).await.err(),
            Some(FsError::NotPermitted)
        );
        assert_eq!(
            fs.rename(tmp, b"a", tmp, b"c", &user(2)).await.err(),
            Some(FsError::NotPermitted)
        );
        assert_eq!(
            fs.rename(tmp, b"b", tmp, b"a", &user(2)).await.err(),
            Some(FsError::NotPermitted)
        );
        assert!(fs.remove(tmp, b"a", &user(1)).await.is_ok());
    });
}

#[test]
fn a_held_file_outlives_its_name() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let id = file(&fs, root, "f", 0o644, &admin).await;
        write(&fs, id, 0, b"hello", &admin).await.expect("writes");
        fs.hold(id).await.expect("there");
        fs.remove(root, b"f", &admin).await.expect("removes");
        let attr = fs.getattr(id).await.expect("held");
        assert_eq!((attr.links, attr.size), (0, 5));
        assert_eq!(fs.unlinked_count().await, Ok(1));
        write(&fs, id, 5, b" world", &admin).await.expect("writes");
        assert_eq!(
            fs.read(id, 0, 100, &admin).await.expect("reads").to_vec(),
            b"hello world"
        );
        assert_eq!(
            fs.link(id, root, b"again", &admin).await.err(),
            Some(FsError::NotFound)
        );
        fs.release(id);
        fs.wait_unlinked_drained().await.expect("open");
        assert_eq!(fs.unlinked_count().await, Ok(0));
        assert_eq!(fs.getattr(id).await, Err(FsError::Stale));
    });
}

/// A change in a directory waits for stable storage, not for the directory: another task may have removed it.
#[test]
fn a_change_becomes_stable_though_its_directory_is_removed() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let dir = dir(&fs, root, "dir", 0o755, &admin).await;
        file(&fs, dir, "file", 0o644, &admin).await;
        fs.remove(dir, b"file", &admin).await.expect("removes");
        fs.rmdir(root, b"dir", &admin).await.expect("removes");
        assert_eq!(fs.commit(dir, 0, 0).await, Err(FsError::Stale));
        assert_eq!(fs.commit_change(dir).await, Ok(()));
    });
}

#[test]
fn big_files_are_freed_in_steps_and_their_space_returns() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let id = file(&fs, root, "big", 0o644, &admin).await;
        let mut piece = vec![0; 1 << 20];
        world::Rng::new(1).fill(&mut piece);
        for i in 0..40 {
            write(&fs, id, i << 20, &piece, &admin)
                .await
                .expect("writes");
        }
        fs.sync().await.expect("syncs");
        assert!(fs.getattr(id).await.expect("there").used > 40 << 20);
        let read = fs
            .read(id, (3 << 20) + 5, 1 << 20, &admin)
            .await
            .expect("reads");
        let got = read.to_vec();
        assert_eq!(got[..(1 << 20) - 5], piece[5..]);
        fs.remove(root, b"big", &admin).await.expect("removes");
        fs.wait_unlinked_drained().await.expect("open");
        assert_eq!(fs.getattr(id).await, Err(FsError::Stale));
    });
}

#[test]
fn sparse_files_of_any_size() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let id = file(&fs, root, "sparse", 0o644, &admin).await;
        let far = (1_u64 << 40) + 3;
        write(&fs, id, far, b"end", &admin).await.expect("writes");
        write(&fs, id, 10 << 20, b"middle", &admin)
            .await
            .expect("writes");
        assert_eq!(fs.getattr(id).await.expect("there").size, far + 3);
        fs.sync().await.expect("syncs");
        assert_eq!(fs.seek(id, 0, SeekTarget::Hole).await, Ok(0));
        assert_eq!(fs.seek(id, 0, SeekTarget::Data).await, Ok(10 << 20));
        assert_eq!(
            fs.seek(id, 10 << 20, SeekTarget::Hole).await,
            Ok((10 << 20) + (128 << 10))
        );
        assert_eq!(fs.seek(id, 11 << 20, SeekTarget::Data).await, Ok(1 << 40));
        assert_eq!(fs.seek(id, far + 1, SeekTarget::Hole).await, Ok(far + 3));
        assert_eq!(
            fs.seek(id, far + 3, SeekTarget::Data).await,
            Err(FsError::NoSuchOffset)
        );
        assert_eq!(
            fs.read(id, far - 2, 100, &admin)
                .await
                .expect("reads")
                .to_vec(),
            b"\0\0end"
        );
        let max = i64::MAX.cast_unsigned();
        assert_eq!(
            write(&fs, id, max, b"x", &admin).await,
            Err(FsError::TooLarge)
        );
        assert_eq!(write(&fs, id, max - 1, b"xyz", &admin).await, Ok(1));
        let huge = SetAttr {
            size: Some(u64::MAX),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(id, &huge, None, &admin).await.err(),
            Some(FsError::TooLarge)
        );
        let cut = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        fs.setattr(id, &cut, None, &admin).await.expect("truncates");
        fs.sync().await.expect("syncs");
        assert_eq!(
            fs.read(id, 0, 100, &admin).await.expect("reads").to_vec(),
            b"\0"
        );
    });
}

#[test]
fn creation_modes() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let first = fs
            .create(
                root,
                b"f",
                CreateMode::Exclusive(0xdead_beef_8bad_f00d),
                &mode(0o600),
                &admin,
            )
            .await;
        let first = first.expect("creates");
        assert!(first.created);
        let again = fs
            .create(
                root,
                b"f",
                CreateMode::Exclusive(0xdead_beef_8bad_f00d),
                &mode(0o600),
                &admin,
            )
            .await;
        let again = again.expect("the same request");
        assert!(!again.created);
        assert_eq!(again.file.id, first.file.id);
        let other = fs
            .create(root, b"f", CreateMode::Exclusive(1), &mode(0o600), &admin)
            .await;
        assert_eq!(other.err(), Some(FsError::Exists));
        write(&fs, first.file.id, 0, b"content", &admin)
            .await
            .expect("writes");
        let guarded = fs
            .create(root, b"f", CreateMode::Guarded, &mode(0o600), &admin)
            .await;
        assert_eq!(guarded.err(), Some(FsError::Exists));
        let keep = fs
            .create(root, b"f", CreateMode::Unchecked, &mode(0o600), &admin)
            .await
            .expect("exists");
        assert_eq!(keep.file.size, 7);
        let empty = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let cut = fs
            .create(root, b"f", CreateMode::Unchecked, &empty, &admin)
            .await
            .expect("exists");
        assert_eq!((cut.file.size, cut.created), (0, false));
        let guard = Some(Timestamp::default());
        assert_eq!(
            fs.setattr(first.file.id, &mode(0o644), guard, &admin)
                .await
                .err(),
            Some(FsError::NotSync)
        );
    });
}

#[test]
fn renames_follow_the_rules() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let a = dir(&fs, root, "a", 0o755, &admin).await;
        let b = dir(&fs, a, "b", 0o755, &admin).await;
        let c = dir(&fs, b, "c", 0o755, &admin).await;
        let rename = async |from, from_name: &'static str, to, to_name: &'static str| {
            fs.rename(from, from_name.as_bytes(), to, to_name.as_bytes(), &admin)
                .await
                .map(|_| ())
        };
        assert_eq!(rename(root, "a", b, "x").await, Err(FsError::Invalid));
        assert_eq!(rename(root, "a", a, "x").await, Err(FsError::Invalid));
        assert_eq!(rename(b, "c", root, "a").await, Err(FsError::NotEmpty));
        assert_eq!(rename(a, "b", root, "a").await, Err(FsError::NotEmpty));
        assert_eq!(rename(a, ".", root, "x").await, Err(FsError::Invalid));
        file(&fs, root, "f", 0o644, &admin).await;
        assert_eq!(
            rename(root, "f", root, "a").await,
            Err(FsError::IsDirectory)
        );
        assert_eq!(
            rename(root, "a", root, "f").await,
            Err(FsError::NotDirectory)
        );
        rename(b, "c", root, "c2").await.expect("moves");
        assert_eq!(fs.getattr(c).await.expect("there").parent, root.object);
        assert_eq!(fs.lookup(c, b"..", &admin).await.expect("there").id, root);
        assert_eq!(fs.getattr(b).await.expect("there").links, 2);
        assert_eq!(fs.getattr(root).await.expect("there").links, 4);
        // Replacing an empty directory, and two names of one file.
        dir(&fs, root, "empty", 0o755, &admin).await;
        rename(root, "c2", root, "empty").await.expect("replaces");
        assert_eq!(
            fs.lookup(root, b"empty", &admin).await.expect("there").id,
            c
        );
        let f = fs.lookup(root, b"f", &admin).await.expect("there").id;
        fs.link(f, root, b"g", &admin).await.expect("links");
        rename(root, "f", root, "g").await.expect("does nothing");
        assert_eq!(fs.getattr(f).await.expect("there").links, 2);
        // A removed directory takes no names.
        fs.hold(c).await.expect("there");
        fs.rmdir(root, b"empty", &admin).await.expect("empty");
        let made = fs
            .create(c, b"x", CreateMode::Guarded, &mode(0o644), &admin)
            .await;
        assert_eq!(made.err(), Some(FsError::NotFound));
        assert_eq!(rename(root, "f", c, "x").await, Err(FsError::NotFound));
        fs.release(c);
    });
}

#[test]
fn moving_a_directory_needs_permission_to_change_it() {
    check(|fs, root| async move {
        let all = dir(&fs, root, "all", 0o777, &Cred::root()).await;
        let to = dir(&fs, all, "to", 0o777, &Cred::root()).await;
        dir(&fs, all, "theirs", 0o755, &user(2)).await;
        assert_eq!(
            fs.rename(all, b"theirs", to, b"x", &user(1)).await.err(),
            Some(FsError::Access)
        );
        assert!(fs.rename(all, b"theirs", all, b"x", &user(1)).await.is_ok());
    });
}

#[test]
fn names_are_checked() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let create = async |name: &[u8]| {
            fs.create(root, name, CreateMode::Guarded, &mode(0o644), &admin)
                .await
                .map(|_| ())
        };
        assert_eq!(create(&[b'n'; 255]).await, Ok(()));
        assert_eq!(create(&[b'n'; 256]).await, Err(FsError::NameTooLong));
        assert_eq!(create(b"a/b").await, Err(FsError::Invalid));
        assert_eq!(create(b"a\0b").await, Err(FsError::Invalid));
        assert_eq!(create(b".").await, Err(FsError::Exists));
        assert_eq!(create(b"..").await, Err(FsError::Exists));
        assert_eq!(create(b"\xff\xfe").await, Ok(()));
        assert_eq!(
            fs.remove(root, b".", &admin).await.err(),
            Some(FsError::IsDirectory)
        );
        assert_eq!(
            fs.rmdir(root, b".", &admin).await.err(),
            Some(FsError::Invalid)
        );
        assert_eq!(
            fs.rmdir(root, b"..", &admin).await.err(),
            Some(FsError::NotEmpty)
        );
    });
}

#[test]
fn flags_forbid_changes() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let id = file(&fs, root, "f", 0o666, &admin).await;
        write(&fs, id, 0, b"abc", &admin).await.expect("writes");
        let set = |flags| SetAttr {
            flags: Some(FlagsChange::among(flags::SETTABLE, flags)),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(id, &set(flags::IMMUTABLE), None, &user(1))
                .await
                .err(),
            Some(FsError::NotPermitted)
        );
        fs.setattr(id, &set(flags::APPENDONLY), None, &admin)
            .await
            .expect("root may");
        assert_eq!(
            write(&fs, id, 0, b"x", &admin).await,
            Err(FsError::NotPermitted)
        );
        assert_eq!(write(&fs, id, 3, b"x", &admin).await, Ok(1));
        let cut = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        assert_eq!(
            fs.setattr(id, &cut, None, &admin).await.err(),
            Some(FsError::NotPermitted)
        );
        fs.setattr(id, &set(flags::IMMUTABLE), None, &admin)
            .await
            .expect("root may");
        assert_eq!(
            write(&fs, id, 4, b"x", &admin).await,
            Err(FsError::NotPermitted)
        );
        assert_eq!(
            fs.setattr(id, &mode(0o600), None, &admin).await.err(),
            Some(FsError::NotPermitted)
        );
        assert_eq!(
            fs.remove(root, b"f", &admin).await.err(),
            Some(FsError::NotPermitted)
        );
        assert_eq!(
            fs.link(id, root, b"g", &admin).await.err(),
            Some(FsError::NotPermitted)
        );
        fs.setattr(id, &set(0), None, &admin)
            .await
            .expect("root may");
        fs.remove(root, b"f", &admin).await.expect("removes");
    });
}

#[test]
fn cookies_survive_removals() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let d = dir(&fs, root, "d", 0o755, &admin).await;
        for i in 0..3000 {
            file(&fs, d, &format!("file-{i:05}"), 0o644, &admin).await;
        }
        let mut cookie = 0;
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let listing = fs
                .readdir(d, cookie, all_entries(50), &admin)
                .await
                .expect("lists");
            for entry in &listing.entries {
                cookie = entry.cookie;
                assert!(seen.insert(entry.name.clone()));
                if entry.file_type == Some(FileType::Regular) {
                    fs.remove(d, &entry.name, &admin).await.expect("removes");
                }
            }
            if listing.eof {
                break;
            }
        }
        assert_eq!(seen.len(), 3002);
        fs.rmdir(root, b"d", &admin).await.expect("empty");
    });
}

#[test]
fn reads_renew_access_times_once() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let id = file(&fs, root, "f", 0o644, &admin).await;
        write(&fs, id, 0, b"x", &admin).await.expect("writes");
        let before = fs.getattr(id).await.expect("there");
        fs.objset()
            .services()
            .handle
            .sleep(std::time::Duration::from_secs(2))
            .await;
        let first = fs.read(id, 0, 1, &admin).await.expect("reads").attr;
        assert!(first.atime > before.atime, "older than the content");
        fs.objset()
            .services()
            .handle
            .sleep(std::time::Duration::from_secs(2))
            .await;
        let second = fs.read(id, 0, 1, &admin).await.expect("reads").attr;
        assert_eq!(second.atime, first.atime, "relatime");
    });
}

#[test]
fn an_object_is_found_by_its_newest_name_and_a_value_behind_its_file() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let inner = dir(&fs, root, "dir", 0o755, &admin).await;
        let id = file(&fs, inner, "f", 0o644, &admin).await;
        let value = vec![b'v'; 65_536];
        fs.set_xattr(id, b"user.long", &value, XattrMode::Create, &admin)
            .await
            .expect("sets");
        let path = async |object: u64| {
            let found = fs.path_of(object).await;
            found.map(|path| String::from_utf8(path).expect("ASCII"))
        };
        assert_eq!(path(id.object).await.as_deref(), Ok("/dir/f"));
        // The hidden directory, and in it the value.
        let mut others = Vec::new();
        for object in id.object + 1..id.object + 16 {
            others.extend(path(object).await);
        }
        others.sort();
        assert_eq!(others, ["/dir/f/<xattrdir>", "/dir/f/<xattrdir>/user.long"]);
        // Of two names the file knows where the newer one was.
        let other = dir(&fs, root, "other", 0o755, &admin).await;
        fs.link(id, other, b"g", &admin).await.expect("links");
        assert_eq!(path(id.object).await.as_deref(), Ok("/other/g"));
        fs.remove(other, b"g", &admin).await.expect("removes");
        assert_eq!(path(id.object).await, Err(FsError::NotFound));
        fs.rmdir(root, b"other", &admin).await.expect("removes");
        assert_eq!(path(id.object).await, Err(FsError::NotFound));
    });
}

#[test]
fn extended_attributes_of_every_namespace_and_size() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let id = file(&fs, root, "f", 0o644, &admin).await;
        let chown = SetAttr {
            uid: Some(1),
            ..SetAttr::default()
        };
        fs.setattr(id, &chown, None, &admin)
            .await
            .expect("root may");
        for (name, len) in [
            (&b"user.small"[..], 3),
            (b"user.empty", 0),
            (b"security.selinux", 30),
            (b"trusted.overlay", 10),
            (b"user.large", 40_000),
            (b"user.larger", 65_536),
        ] {
            let value = vec![b'v'; len];
            fs.set_xattr(id, name, &value, XattrMode::Create, &admin)
                .await
                .expect("sets");
            assert_eq!(fs.xattr(id, name, &admin).await.expect("there"), value);
        }
        assert_eq!(fs.xattrs(id, &admin).await.expect("lists").len(), 6);
        assert_eq!(
            fs.xattrs(id, &user(1)).await.expect("lists").len(),
            5,
            "trusted is root's"
        );
        let set = async |name: &'static [u8], mode, cred: &Cred| {
            fs.set_xattr(id, name, b"x", mode, cred).await.map(|_| ())
        };
        assert_eq!(
            set(b"user.small", XattrMode::Create, &admin).await,
            Err(FsError::Exists)
        );
        assert_eq!(
            set(b"user.none", XattrMode::Replace, &admin).await,
            Err(FsError::NoAttribute)
        );
        assert_eq!(
            set(b"user.x", XattrMode::Any, &user(2)).await,
            Err(FsError::Access)
        );
        assert_eq!(
            set(b"trusted.x", XattrMode::Any, &user(1)).await,
            Err(FsError::NotPermitted)
        );
        assert_eq!(
            set(b"other.x", XattrMode::Any, &admin).await,
            Err(FsError::NotSupported)
        );
        assert_eq!(
            set(b"system.posix_acl_access", XattrMode::Any, &admin).await,
            Err(FsError::NotSupported),
            "acltype is off"
        );
        assert_eq!(
            fs.xattr(id, b"user.none", &admin).await,
            Err(FsError::NoAttribute)
        );
        set(b"user.larger", XattrMode::Replace, &admin)
            .await
            .expect("moves into the list");
        assert_eq!(
            fs.xattr(id, b"user.larger", &admin).await.expect("there"),
            b"x"
        );
        fs.remove_xattr(id, b"user.large", &admin)
            .await
            .expect("removes");
        assert_eq!(
            fs.remove_xattr(id, b"user.large", &admin).await.err(),
            Some(FsError::NoAttribute)
        );
        fs.remove(root, b"f", &admin).await.expect("removes");
        fs.wait_unlinked_drained().await.expect("open");
    });
}

#[test]
fn case_and_form_of_names() {
    let props = RootProps {
        case: CaseSensitivity::Insensitive,
        ..RootProps::default()
    };
    rig::run(3, props, |_, mut rig| async move {
        let (fs, admin) = (rig.fs.clone(), Cred::root());
        let root = fs.root();
        let id = file(&fs, root, "ReadMe", 0o644, &admin).await;
        assert_eq!(
            fs.lookup(root, b"README", &admin)
                .await
                .expect("the same")
                .id,
            id
        );
        let again = fs
            .create(root, b"readme", CreateMode::Guarded, &mode(0o644), &admin)
            .await;
        assert_eq!(again.err(), Some(FsError::Exists));
        fs.rename(root, b"readme", root, b"README", &admin)
            .await
            .expect("spelled anew");
        let listing = fs
            .readdir(root, 2, all_entries(10), &admin)
            .await
            .expect("lists");
        assert_eq!(listing.entries[0].name, b"README");
        assert_eq!(fs.getattr(root).await.expect("there").size, 3);
        fs.remove(root, b"readme", &admin).await.expect("removes");
        assert_eq!(fs.getattr(root).await.expect("there").size, 2);
        rig.close().await;
    });
    let props = RootProps {
        normalization: 0x10,
        utf8_only: true,
        ..RootProps::default()
    };
    rig::run(4, props, |_, mut rig| async move {
        let (fs, admin) = (rig.fs.clone(), Cred::root());
        let root = fs.root();
        let id = file(&fs, root, "caf\u{e9}", 0o644, &admin).await;
        let composed = fs
            .lookup(root, "cafe\u{301}".as_bytes(), &admin)
            .await
            .expect("the same");
        assert_eq!(composed.id, id);
        assert_eq!(
            fs.lookup(root, b"CAFE", &admin).await.err(),
            Some(FsError::NotFound)
        );
        let bad = fs
            .create(root, b"\xff", CreateMode::Guarded, &mode(0o644), &admin)
            .await;
        assert_eq!(bad.err(), Some(FsError::IllegalName));
        rig.close().await;
    });
}

#[test]
fn special_files() {
    check(|fs, root| async move {
        let admin = Cred::root();
        let rdev = DeviceNumber {
            major: 259,
            minor: 70000,
        };
        let made = fs
            .mknod(root, b"blk", FileType::Block, rdev, &mode(0o600), &admin)
            .await
            .expect("makes");
        assert_eq!(made.file.rdev, rdev);
        let denied = fs
            .mknod(
                root,
                b"no",
                FileType::Character,
                rdev,
                &mode(0o600),
                &user(1),
            )
            .await;
        assert_eq!(denied.err(), Some(FsError::NotPermitted));
        let link = fs
            .symlink(root, b"l", &[b't'; 4000], &mode(0o644), &admin)
            .await
            .expect("makes")
            .file;
        assert_eq!((link.mode, link.size), (0o777, 4000));
        assert_eq!(fs.readlink(link.id).await.expect("reads"), vec![b't'; 4000]);
        assert_eq!(
            fs.symlink(root, b"m", &[b't'; 4096], &mode(0o644), &admin)
                .await
                .err(),
            Some(FsError::NameTooLong)
        );
        assert_eq!(fs.readlink(root).await, Err(FsError::Invalid));
        assert_eq!(
            fs.read(root, 0, 1, &admin).await.err(),
            Some(FsError::IsDirectory)
        );
        assert_eq!(
            write(&fs, made.file.id, 0, b"x", &admin).await,
            Err(FsError::Invalid)
        );
    });
}

/// Many tasks in the same directories, moving files across: none waits for ever, nothing is lost.
#[test]
fn concurrent_renames_end() {
    rig::run(11, RootProps::default(), |handle, mut rig| async move {
        let fs = rig.fs.clone();
        let admin = Cred::root();
        let root = fs.root();
        let mut dirs = vec![root];
        for i in 0..6 {
            let parent = dirs[i / 2];
            dirs.push(dir(&fs, parent, &format!("d{i}"), 0o755, &admin).await);
        }
        for (i, &d) in dirs.iter().enumerate() {
            file(&fs, d, &format!("f{i}"), 0o644, &admin).await;
        }
        let mut tasks = Vec::new();
        for task in 0..8_u64 {
            let (fs, dirs) = (fs.clone(), dirs.clone());
            tasks.push(handle.spawn("mover", async move {
                let mut rng = world::Rng::new(task);
                for _ in 0..200 {
                    let from = dirs[rng.index(dirs.len())];
                    let to = dirs[rng.index(dirs.len())];
                    let kind = if rng.chance(700_000) { "f" } else { "d" };
                    let name = format!("{kind}{}", rng.below(7));
                    let other = format!("{kind}{}", rng.below(7));
                    match rng.below(4) {
                        0 => drop(
                            fs.create(
                                from,
                                name.as_bytes(),
                                CreateMode::Unchecked,
                                &mode(0o644),
                                &Cred::root(),
                            )
                            .await,
                        ),
                        1 => drop(fs.lookup(from, name.as_bytes(), &Cred::root()).await),
                        _ => {
                            drop(
                                fs.rename(
                                    from,
                                    name.as_bytes(),
                                    to,
                                    other.as_bytes(),
                                    &Cred::root(),
                                )
                                .await,
                            );
                        }
                    }
                }
            }));
        }
        for task in tasks {
            task.await;
        }
        // Directories never vanish but by being replaced while empty; those left form one tree.
        let mut todo = vec![(root, root)];
        let mut seen = 0;
        while let Some((id, parent)) = todo.pop() {
            seen += 1;
            assert!(seen < 100, "a loop");
            let attr = fs.getattr(id).await.expect("there");
            assert_eq!(attr.parent, parent.object);
            let listing = fs
                .readdir(id, 2, all_entries(1000), &admin)
                .await
                .expect("lists");
            assert_eq!(attr.size, listing.entries.len() as u64 + 2);
            let subdirs: Vec<FileId> = listing
                .entries
                .iter()
                .filter(|e| e.file_type == Some(FileType::Directory))
                .map(|e| e.attr.as_ref().expect("asked for").id)
                .collect();
            assert_eq!(attr.links, subdirs.len() as u64 + 2);
            todo.extend(subdirs.into_iter().map(|d| (d, id)));
        }
        rig.close().await;
    });
}
