//! A file that a client has delegated: each change of it by others is refused until the client has given it back, and does nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use zpl::{
    Attr, CloneSource, CreateMode, Cred, DelegatedAccess, Delegation, FileId, Fs, FsError,
    Recalled, SetAttr, Stability, Timestamp, XattrMode,
};

use crate::posix::{check, file};

type Changed<'a> = Pin<Box<dyn Future<Output = Result<(), FsError>> + 'a>>;
type Change = for<'a> fn(&'a Fs, FileId, FileId, &'a Cred) -> Changed<'a>;

fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

/// Each takes the directory and the file "f" in it; "other" is beside it.
const CHANGES: [(&str, Change); 12] = [
    ("write", |fs, _, id, cred| {
        let data = runtime::IoBuf::copy_from(b"after");
        Box::pin(async move {
            fs.write(id, 0, data, Stability::Unstable, cred)
                .await
                .map(drop)
        })
    }),
    ("mode", |fs, _, id, cred| {
        Box::pin(async move { fs.setattr(id, &mode(0o600), None, cred).await.map(drop) })
    }),
    ("size", |fs, _, id, cred| {
        let size = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        Box::pin(async move { fs.setattr(id, &size, None, cred).await.map(drop) })
    }),
    ("punch", |fs, _, id, cred| {
        Box::pin(async move { fs.punch(id, 0, 3, cred).await.map(drop) })
    }),
    ("xattr", |fs, _, id, cred| {
        let any = XattrMode::Any;
        Box::pin(async move { fs.set_xattr(id, b"user.a", b"b", any, cred).await.map(drop) })
    }),
    ("link", |fs, dir, id, cred| {
        Box::pin(async move { fs.link(id, dir, b"two", cred).await.map(drop) })
    }),
    ("remove", |fs, dir, _, cred| {
        Box::pin(async move { fs.remove(dir, b"f", cred).await.map(drop) })
    }),
    ("rename", |fs, dir, _, cred| {
        Box::pin(async move { fs.rename(dir, b"f", dir, b"to", cred).await.map(drop) })
    }),
    ("rename over it", |fs, dir, _, cred| {
        Box::pin(async move { fs.rename(dir, b"other", dir, b"f", cred).await.map(drop) })
    }),
    ("exchange", |fs, dir, _, cred| {
        Box::pin(async move { fs.exchange(dir, b"f", dir, b"other", cred).await.map(drop) })
    }),
    ("exchange with it", |fs, dir, _, cred| {
        Box::pin(async move { fs.exchange(dir, b"other", dir, b"f", cred).await.map(drop) })
    }),
    ("create and truncate", |fs, dir, _, cred| {
        let size = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let unchecked = CreateMode::Unchecked;
        Box::pin(async move { fs.create(dir, b"f", unchecked, &size, cred).await.map(drop) })
    }),
];

fn delegation(holder: u64, recalls: &Arc<AtomicUsize>) -> Delegation {
    let recalls = Arc::clone(recalls);
    Delegation {
        access: DelegatedAccess::Read,
        holder,
        unchanged_since: None,
        recall: Arc::new(move |_, _, why| {
            assert_eq!(why, Recalled::ForChange);
            recalls.fetch_add(1, Ordering::Relaxed);
        }),
    }
}

fn shown(attr: &Attr) -> (u64, u64, u32, Timestamp) {
    (attr.size, attr.links, attr.mode, attr.ctime)
}

async fn refused(fs: Fs, root: FileId, what: &'static str, change: Change, tried: &Mutex<usize>) {
    let (admin, recalls) = (Cred::root(), Arc::default());
    let id = file(&fs, root, "f", 0o644, &admin).await;
    file(&fs, root, "other", 0o644, &admin).await;
    let data = runtime::IoBuf::copy_from(b"before");
    let written = fs.write(id, 0, data, Stability::Unstable, &admin).await;
    assert!(written.is_ok());
    let before = fs.getattr(id).await.expect("there");
    let given = fs.delegate(id, &delegation(7, &recalls)).await;
    assert_eq!(given, Ok(Some(before.clone())));
    for _ in 0..2 {
        assert_eq!(
            change(&fs, root, id, &admin).await,
            Err(FsError::Delegated),
            "{what}"
        );
    }
    let after = fs.getattr(id).await.expect("there");
    assert_eq!(shown(&after), shown(&before), "{what}: nothing was changed");
    assert_eq!(recalls.load(Ordering::Relaxed), 1, "{what}: recalled once");
    assert_eq!(
        fs.read(id, 0, 10, &admin).await.map(|data| data.len()),
        Ok(6)
    );
    // The holder itself may, as far as the file is concerned.
    let holder = Cred { holder: 7, ..admin };
    assert_eq!(change(&fs, root, id, &holder).await, Ok(()), "{what}");
    *tried.lock().expect("no panic") += 1;
}

#[test]
fn every_change_of_a_delegated_file_is_refused_to_others() {
    static TRIED: Mutex<usize> = Mutex::new(0);
    for (what, change) in CHANGES {
        check(move |fs, root| refused(fs, root, what, change, &TRIED));
    }
    assert_eq!(*TRIED.lock().expect("no panic"), CHANGES.len());
}

#[test]
fn only_what_was_not_changed_since_the_restart_is_reclaimed() {
    check(|fs, root| async move {
        let (admin, recalls) = (Cred::root(), Arc::default());
        let id = file(&fs, root, "f", 0o644, &admin).await;
        let changed = fs.getattr(id).await.expect("there").ctime;
        let later = Timestamp {
            seconds: changed.seconds + 1,
            ..changed
        };
        let reclaim = |since| Delegation {
            unchanged_since: Some(since),
            ..delegation(7, &recalls)
        };
        assert_eq!(fs.delegate(id, &reclaim(changed)).await, Ok(None));
        let given = fs.delegate(id, &reclaim(later)).await;
        assert!(given.is_ok_and(|attr| attr.is_some()));
        assert_eq!(
            fs.delegate(root, &reclaim(later)).await,
            Err(FsError::IsDirectory)
        );
    });
}

#[test]
fn what_one_client_writes_others_read_when_it_was_given_back() {
    check(|fs, root| async move {
        let (admin, recalls) = (Cred::root(), Arc::default());
        let id = file(&fs, root, "f", 0o644, &admin).await;
        let copy = file(&fs, root, "copy", 0o644, &admin).await;
        let data = runtime::IoBuf::copy_from(&[7; 4096]);
        let written = fs.write(id, 0, data, Stability::Unstable, &admin).await;
        assert!(written.is_ok());
        let writes = |own_holds| Delegation {
            access: DelegatedAccess::Write { own_holds },
            ..delegation(7, &recalls)
        };
        for _ in 0..2 {
            assert!(fs.hold(id).await.is_ok());
        }
        // Others hold it, too: they have it open, and read it without asking.
        assert_eq!(fs.delegate(id, &writes(1)).await, Ok(None));
        fs.release(id);
        assert!(
            fs.delegate(id, &writes(1))
                .await
                .is_ok_and(|attr| attr.is_some())
        );
        let read = |cred: Cred| {
            let fs = fs.clone();
            async move { fs.read(id, 0, 10, &cred).await.map(|data| data.len()) }
        };
        let holder = Cred {
            holder: 7,
            ..Cred::root()
        };
        assert_eq!(read(holder.clone()).await, Ok(10));
        assert_eq!(recalls.load(Ordering::Relaxed), 0, "its own");
        assert_eq!(read(Cred::root()).await, Err(FsError::Delegated));
        let source = CloneSource {
            fs: &fs,
            file: id,
            offset: 0,
            len: 4096,
            may_be_shorter: false,
        };
        let cloned = fs
            .clone_range(copy, 0, source, Stability::Unstable, &admin)
            .await;
        assert!(
            matches!(cloned, Err(FsError::Delegated | FsError::NotSupported)),
            "{cloned:?}"
        );
        let write = |cred: Cred| {
            let (fs, data) = (fs.clone(), runtime::IoBuf::copy_from(b"after"));
            async move {
                fs.write(id, 0, data, Stability::Unstable, &cred)
                    .await
                    .map(drop)
            }
        };
        assert_eq!(write(Cred::root()).await, Err(FsError::Delegated));
        assert_eq!(recalls.load(Ordering::Relaxed), 1, "recalled once");
        // It sends what it wrote before it gives the file back.
        assert_eq!(write(holder).await, Ok(()));
    });
}
