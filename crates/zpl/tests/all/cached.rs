//! The attribute cache answers what the file system itself answers, at every moment of other work.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use runtime::IoBuf;
use world::Rng;
use zpl::{
    Access, Attr, CreateMode, Cred, FileId, Fs, FsError, RootProps, SetAttr, SetTime, Stability,
    XattrMode,
};

use crate::rig::{self, FS, Rig};

const NAMES: u64 = 6;
const WORKERS: u64 = 5;
/// After each opening no znode is in memory: changes wait half-way, and are compared there.
const OPENINGS: u64 = 6;
const STEPS: usize = 60;
const XATTRS: [&[u8]; 3] = [b"user.a", b"security.b", b"user.security.b"];

/// Polls a future once: its output, if it needs no wait.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn users() -> [Cred; 2] {
    let user = |uid| Cred {
        uid,
        gid: uid,
        groups: vec![9],
        opened: false,
        holder: 0,
    };
    [Cred::root(), user(3)]
}

fn a_name(rng: &mut Rng) -> Vec<u8> {
    format!("n{}", rng.below(NAMES)).into_bytes()
}

/// One change of something in one of two directories; what fails fails.
async fn change(fs: &Fs, dirs: [FileId; 2], rng: &mut Rng) -> Result<(), FsError> {
    let root = Cred::root();
    let (dir, other) = (dirs[rng.index(2)], dirs[rng.index(2)]);
    let (name, to) = (a_name(rng), a_name(rng));
    let mode = SetAttr {
        mode: Some(u32::try_from(rng.below(0o1000)).expect("small")),
        ..SetAttr::default()
    };
    match rng.below(14) {
        0..3 => {
            fs.create(dir, &name, CreateMode::Unchecked, &mode, &root)
                .await?;
        }
        3 => {
            fs.mkdir(dir, &name, &mode, &root).await?;
        }
        4 => {
            fs.remove(dir, &name, &root).await?;
        }
        5 => {
            fs.rmdir(dir, &name, &root).await?;
        }
        6 => {
            fs.rename(dir, &name, other, &to, &root).await?;
        }
        7 => {
            fs.setattr(dir, &mode, None, &root).await?;
        }
        kind => {
            let file = fs.lookup(dir, &name, &root).await?.id;
            match kind {
                8 => {
                    let data = IoBuf::from(vec![7; rng.index(200_000) + 1]);
                    let at = rng.below(300_000);
                    fs.write(file, at, data, Stability::Unstable, &root).await?;
                }
                9 => {
                    fs.read(file, 0, 100, &root).await?;
                }
                10 => {
                    fs.link(file, other, &to, &root).await?;
                }
                12 => {
                    let value = vec![5; rng.index(1500)];
                    let name = XATTRS[rng.index(XATTRS.len())];
                    fs.set_xattr(file, name, &value, XattrMode::Any, &root)
                        .await?;
                }
                13 => {
                    let name = XATTRS[rng.index(XATTRS.len())];
                    fs.remove_xattr(file, name, &root).await?;
                }
                _ => {
                    let set = SetAttr {
                        size: rng.coin().then(|| rng.below(300_000)),
                        mtime: Some(SetTime::Server),
                        ..mode
                    };
                    fs.setattr(file, &set, None, &root).await?;
                }
            }
        }
    }
    Ok(())
}

/// Compares all cache entries with what the file system answers at the same moment, and has them cached anew. The space used
/// is cached as it was until the txg is on disk, while it grows; only when nothing is `changing` it has to be the same.
async fn compare(
    rig: &Rig,
    dirs: [FileId; 2],
    ids: &mut Vec<FileId>,
    compared: &Cell<[usize; 5]>,
    changing: bool,
) {
    let (fs, cache) = (&rig.fs, &rig.attr_cache);
    let used = |mut attr: Attr| {
        if changing {
            attr.used = 0;
        }
        attr
    };
    let mut count = compared.get();
    for cred in &users() {
        for dir in dirs {
            for number in 0..NAMES {
                let name = format!("n{number}").into_bytes();
                if let Some((file, of)) = cache.search(FS, dir, &name, cred)
                    && let Some(found) = at_once(fs.lookup(dir, &name, cred))
                {
                    assert_eq!(found.map(used), Ok(used(file)), "{name:?} for {}", cred.uid);
                    if let Some(attr) = at_once(fs.getattr(dir)) {
                        assert_eq!(attr.map(used), Ok(used(of)));
                    }
                    count[0] += 1;
                }
                if cache.is_absent(FS, dir, &name, cred)
                    && let Some(found) = at_once(fs.lookup(dir, &name, cred))
                {
                    assert_eq!(found.map(used), Err(FsError::NotFound));
                    count[3] += 1;
                }
                if let Ok(attr) = fs.lookup(dir, &name, cred).await
                    && !ids.contains(&attr.id)
                {
                    ids.push(attr.id);
                }
            }
        }
        for &id in &*ids {
            if let Some(cached) = cache.attr(FS, id)
                && let Some(attr) = at_once(fs.getattr(id))
            {
                assert_eq!(attr.map(used), Ok(used(cached)));
                count[1] += 1;
            }
            let wanted = Access(63);
            if let Some(cached) = cache.access(FS, id, wanted, cred)
                && let Some(granted) = at_once(fs.access(id, wanted, cred))
            {
                assert_eq!(granted, Ok(cached), "{id:?} for {}", cred.uid);
                count[2] += 1;
            }
            let _ = fs.access(id, wanted, cred).await;
            let _ = fs.getattr(id).await;
        }
    }
    for &id in &*ids {
        compare_xattrs(rig, id, &mut count[4]).await;
    }
    compared.set(count);
    let surplus = ids.len().saturating_sub(24);
    ids.drain(2..2 + surplus);
}

async fn compare_xattrs(rig: &Rig, id: FileId, count: &mut usize) {
    let (fs, cache, root) = (&rig.fs, &rig.attr_cache, Cred::root());
    for name in XATTRS {
        if let Some(cached) = cache.xattr(FS, id, name)
            && let Some(value) = at_once(fs.xattr(id, name, &root))
        {
            assert_eq!(value, cached, "{id:?}");
            *count += 1;
        }
    }
    if let Some(cached) = cache.xattrs(FS, id)
        && let Some(all) = at_once(fs.xattrs(id, &root))
    {
        assert_eq!(all, Ok(cached), "{id:?}");
    }
    let _ = fs.xattr(id, XATTRS[0], &root).await;
}

fn run(seed: u64) {
    rig::run(seed, RootProps::default(), |handle, mut rig| async move {
        let root = Cred::root();
        let open = SetAttr {
            mode: Some(0o755),
            ..SetAttr::default()
        };
        let above = rig.fs.root();
        let mut dirs = [above; 2];
        for (dir, name) in dirs.iter_mut().zip([b"a", b"b"]) {
            let made = rig.fs.mkdir(above, name, &open, &root).await;
            *dir = made.expect("makes").file.id;
        }
        let compared = Rc::new(Cell::new([0; 5]));
        for round in 0..OPENINGS {
            let left = Rc::new(Cell::new(WORKERS));
            for worker in 0..WORKERS {
                let (fs, left) = (rig.fs.clone(), left.clone());
                let (handle, own) = (handle.clone(), seed << 8 | round << 4 | worker);
                drop(handle.clone().spawn("worker", async move {
                    let mut rng = Rng::new(own);
                    for _ in 0..STEPS {
                        let _ = change(&fs, dirs, &mut rng).await;
                        let most = if rng.chance(50_000) { 100_000 } else { 200 };
                        handle.sleep(Duration::from_micros(rng.below(most))).await;
                    }
                    left.set(left.get() - 1);
                }));
            }
            let mut ids = dirs.to_vec();
            let mut rng = Rng::new(seed);
            while left.get() > 0 {
                compare(&rig, dirs, &mut ids, &compared, true).await;
                handle.sleep(Duration::from_micros(rng.below(200))).await;
            }
            rig.fs.sync().await.expect("syncs");
            compare(&rig, dirs, &mut ids, &compared, false).await;
            rig.reopen().await;
        }
        // The comparison compared something.
        let counts = compared.get();
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
        rig.close().await;
    });
}

#[test]
fn entries_are_valid_while_files_change() {
    for seed in 1..=4 {
        eprintln!("seed {seed}");
        run(seed);
    }
}
