//! A file that a client has delegated: each change of it by others is refused until the client has given it back, and does nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use zpl::{
    Attr, CreateMode, Cred, Delegation, FileId, Fs, FsError, Recalled, SetAttr, Stability,
    Timestamp, XattrMode,
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
    assert_eq!(fs.delegate(id, &delegation(7, &recalls)).await, Ok(true));
    let before = fs.getattr(id).await.expect("there");
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
        assert_eq!(fs.delegate(id, &reclaim(changed)).await, Ok(false));
        assert_eq!(fs.delegate(id, &reclaim(later)).await, Ok(true));
        assert_eq!(
            fs.delegate(root, &reclaim(later)).await,
            Err(FsError::IsDirectory)
        );
    });
}
