//! Goal: quotas of users and groups hold, and OpenZFS finds them where it looks. Method: a user writes until refused,
//! creates files until refused, and others go on; then every judge looks at the pool.

use anyhow::{Context as _, Result, ensure};
use engine::{
    CreateDataset, CreateMode, Cred, Ending, Engine, FsError, FsHandle, IoBuf, PoolSpec, SetAttr,
    Stability, Threads, UsageOf,
};
use tests::block_on;

use crate::written_pools::{Disks, bytes, judge};

fn make(fs: &FsHandle, name: &str, uid: u32) -> Result<engine::FileId, FsError> {
    let set = SetAttr {
        mode: Some(0o644),
        uid: Some(uid),
        gid: Some(uid),
        ..SetAttr::default()
    };
    let made = block_on(async {
        let root = fs.root().await?.id;
        let cred = Cred::root();
        fs.create(root, name.as_bytes(), CreateMode::Guarded, &set, &cred)
            .await
    })?;
    Ok(made.file.id)
}

fn write(fs: &FsHandle, file: engine::FileId, at: u64) -> Result<(), FsError> {
    let data = IoBuf::copy_from(&bytes(at + 1, 100_000, true));
    block_on(fs.write(file, at, data, Stability::FileSync, &Cred::root())).map(drop)
}

fn run() -> Result<()> {
    let disks = Disks::new(1, 256);
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: "quotas".to_owned(),
        vdevs: vec![disks.single(0)],
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[]))?;
    let request = CreateDataset {
        name: "quotas/fs".to_owned(),
        properties: vec![("userquota@1000".to_owned(), "1M".to_owned())],
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request))?;
    let quota = |name: &str, value: &str| {
        let setting = [(name.to_owned(), value.to_owned())];
        block_on(pool.set_dataset_properties("quotas/fs", &setting))
    };
    quota("groupobjquota@2000", "5")?;
    let fs = block_on(pool.open_fs("quotas/fs"))?;
    let (mine, other) = (make(&fs, "mine", 1000)?, make(&fs, "other", 1001)?);
    let mut refused = None;
    for i in 0..100 {
        if let Err(error) = write(&fs, mine, i * 100_000) {
            refused = Some((i, error));
            break;
        }
        block_on(pool.sync())?;
    }
    let (count, error) = refused.context("nothing was refused")?;
    ensure!(matches!(error, FsError::Quota), "refused for {error}");
    ensure!((8..=16).contains(&count), "refused after {count} writes");
    ensure!(matches!(make(&fs, "more", 1000), Err(FsError::Quota)));
    write(&fs, other, 0)?;
    for i in 0..5 {
        make(&fs, &format!("g{i}"), 2000)?;
        block_on(pool.sync())?;
    }
    ensure!(matches!(make(&fs, "g5", 2000), Err(FsError::Quota)));
    quota("userquota@1000", "none")?;
    write(&fs, mine, 5_000_000)?;
    let users = block_on(pool.usage("quotas/fs", UsageOf::Groups))?;
    let limited = users.iter().find(|u| u.id == 2000).context("listed")?;
    ensure!(limited.object_quota == 5 && limited.objects == Some(5));
    drop((fs, pool));
    block_on(engine.end_pool("quotas", Ending::Export { command: None }))?;
    judge(&disks, "quotas")
}

#[test]
fn quotas_of_users_and_groups_hold() {
    run().expect("quotas that hold and a clean pool");
}
