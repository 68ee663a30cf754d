//! Pools in which OpenZFS replaced pointers to removed vdevs by those to the new places while snapshots have the old ones: its
//! account of them goes on with all that is done here to the datasets, and with what OpenZFS does to them afterwards.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;

use dmu::{AllocSpec, Tx, zap};
use dsl::{Estimate, Hierarchy};
use ondisk::dsl::BpobjPhys;
use ondisk::{ObjectId, ObjectType};
use pool::{ImportPolicy, Pool, Tuning};
use runtime::Handle;
use world::{DiskModel, Image, Moment, World};

use crate::removal::{by_openzfs, import_with, scrub_is_clean};
use crate::support::*;

const DISKS: usize = 4;
const DIRECTORY: ObjectId = ObjectId(1);
const OBSOLETE: &str = "com.delphix:obsolete_bpobj";

/// The parts of a disk that were written, by their offsets.
struct Disk {
    size: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

/// Has OpenZFS make a pool and remove three of four vdevs from it, one after the other; after each it replaces pointers in a
/// file system and a clone of it, with snapshots between. `None` without OpenZFS.
fn make() -> Option<Vec<Disk>> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let names = ["a", "b", "c", "d"];
    let files: Vec<PathBuf> = names.map(|name| dir.path().join(name)).into();
    for (file, size) in files.iter().zip([64, 64, 64, 256]) {
        let file = std::fs::File::create(file).expect("create a disk");
        file.set_len(size * MIB).expect("size a disk");
    }
    let mut spec = vec!["stripe", "-a", "12"];
    spec.extend(files.iter().map(|file| file.to_str().expect("a name")));
    if !refpool_run(dir.path(), "create", &[], &spec) {
        return None;
    }
    let by_openzfs = |operations: &[&str]| {
        let mut arguments = vec!["--"];
        arguments.extend(operations);
        refpool_run(dir.path(), "import", &files, &arguments);
    };
    let (fill, snapshot) = (["fill:tank/x=100000"; 3], ["tank/x@first"]);
    let both = [fill, ["fill:tank/y=100000"; 3]].concat();
    by_openzfs(&[&["tank/x"], &fill[..], &snapshot].concat());
    // Each lays its objects elsewhere, so that there is much beside what is written later.
    by_openzfs(&fill);
    by_openzfs(&fill);
    by_openzfs(&["tank/x@second", "clone:tank/x@second=tank/y"]);
    by_openzfs(&both);
    for (remove, snapshots) in [
        ("remove:tank=a", ["tank/x@third", "tank/y@one"]),
        ("remove:tank=b", ["tank/x@fourth", "tank/y@two"]),
    ] {
        by_openzfs(&[remove, "waitremove:tank"]);
        by_openzfs(&both);
        by_openzfs(&[&both[..], &snapshots].concat());
    }
    by_openzfs(&["remove:tank=c", "waitremove:tank"]);
    by_openzfs(&both);
    let disks = files.iter().map(|file| {
        let image = Image::from_file(file).expect("read a disk");
        let parts = image.written().into_iter().map(|offset| {
            let mut bytes = vec![0; usize::try_from(Image::PART).expect("small")];
            image.read(offset, &mut bytes);
            (offset, bytes)
        });
        Disk {
            size: image.size(),
            parts: parts.collect(),
        }
    });
    Some(disks.collect())
}

/// A world with the disks of that pool, which is made once.
fn replaced_pointers() -> Option<World> {
    static MADE: OnceLock<Option<Vec<Disk>>> = OnceLock::new();
    let disks = MADE.get_or_init(make).as_ref()?;
    let world = World::new(1);
    for (index, disk) in disks.iter().enumerate() {
        let mut image = Image::new(disk.size);
        for (offset, bytes) in &disk.parts {
            image.write(*offset, bytes);
        }
        world.add_disk_with(path(index), DiskModel::new(disk.size), image);
    }
    Some(world)
}

async fn import_here(handle: &Handle) -> Pool {
    import_with(handle, DISKS, &Tuning::default()).await
}

/// Frees every other object of a dataset and writes new ones.
async fn churn(pool: &Pool, name: &str) {
    let dataset = pool.hierarchy().dataset(name).await.expect("a dataset");
    let os = dataset.objset();
    let (mut after, mut objects) = (ObjectId(0), Vec::new());
    while let Some(object) = os.next_object(after).await.expect("next object") {
        let info = os.object_info(object).await.expect("object info");
        if info.object_type == ObjectType::PLAIN_OTHER {
            objects.push(object);
        }
        after = object;
    }
    assert!(!objects.is_empty(), "{name} has objects");
    for object in objects.into_iter().step_by(2) {
        let tx = dataset.begin(Estimate::bytes(MIB)).await.expect("begin");
        os.free_object(object, &tx).await.expect("free");
        let spec = AllocSpec::new(ObjectType::PLAIN_OTHER).block_size(131_072);
        let object = os.allocate(spec, &tx).await.expect("allocate");
        let data = vec![7; 300_000];
        os.write(object, 0, &data, &tx).await.expect("write");
    }
    pool.sync().await.expect("sync");
}

async fn operate(pool: &Pool, operation: &str) {
    let hierarchy = pool.hierarchy();
    let words: Vec<&str> = operation.split(' ').collect();
    let names = [words[1].to_owned()];
    let refused = match words[..] {
        ["snapshot", _] => hierarchy.snapshot(&names, &[]).await,
        ["destroy", name] if name.contains('@') => hierarchy.destroy_snapshots(&names, false).await,
        ["destroy", name] if name.contains('#') => hierarchy.destroy_bookmarks(&names).await,
        ["destroy", name] => hierarchy.destroy(name).await.map(|()| Vec::new()),
        ["rollback", name] => hierarchy.rollback(name, None).await.map(|()| Vec::new()),
        ["promote", name] => hierarchy.promote(name).await.map(|()| Vec::new()),
        ["bookmark", name, snapshot] => {
            let wanted = [(name.to_owned(), snapshot.to_owned())];
            hierarchy.create_bookmarks(&wanted).await
        }
        ["churn", name] => {
            churn(pool, name).await;
            Ok(Vec::new())
        }
        _ => panic!("{operation}?"),
    };
    let refused = refused.expect(operation);
    assert!(refused.is_empty(), "{operation}: {refused:?}");
}

/// The list of pointers that wait to be noted, if there is one.
async fn waiting(pool: &Pool) -> Option<ObjectId> {
    let found = zap::lookup_u64(pool.hierarchy().mos(), DIRECTORY, OBSOLETE).await;
    found.expect("lookup").map(ObjectId)
}

async fn all_noted(pool: &Pool) {
    while pool.hierarchy().has_background_work() {
        pool.sync().await.expect("sync");
    }
    assert_eq!(waiting(pool).await, None);
}

/// Has the pool changed here, then by OpenZFS, and opens it here again.
fn goes_on(ours: &[&str], theirs: &[&str]) {
    let Some(world) = replaced_pointers() else {
        return;
    };
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        for operation in ours {
            operate(&pool, operation).await;
        }
        all_noted(&pool).await;
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, &format!("{ours:?}"));
    let theirs = [theirs, &["waitfree:tank", "scrub:tank"]].concat();
    let back = by_openzfs(&world, DISKS, &theirs).expect("OpenZFS was there");
    zdb_clean(&back, &format!("{ours:?}, then {theirs:?}"));
    run(&back, async |handle| {
        let pool = import_here(&handle).await;
        all_noted(&pool).await;
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
}

#[test]
fn snapshots_are_destroyed_between_others() {
    goes_on(
        &[
            "destroy tank/x@third",
            "churn tank/x",
            "destroy tank/y@one",
            "churn tank/y",
        ],
        &[
            "destroy:tank/x@fourth",
            "fill:tank/x=100000",
            "destroy:tank/y@two",
        ],
    );
}

#[test]
fn new_snapshots_get_the_lists() {
    goes_on(
        &[
            "churn tank/x",
            "snapshot tank/x@fifth",
            "snapshot tank/y@three",
            "churn tank/x",
            "destroy tank/x@fourth",
            "destroy tank/y@three",
            "destroy tank/y@two",
            "destroy tank/y@one",
            "destroy tank/y",
            "destroy tank/x@third",
            "destroy tank/x@second",
            "destroy tank/x@first",
        ],
        &[
            "fill:tank/x=100000",
            "tank/x@sixth",
            "fill:tank/x=100000",
            "destroy:tank/x@fifth",
            "rollback:tank/x@sixth",
        ],
    );
}

#[test]
fn a_rollback_drops_the_list() {
    goes_on(
        &[
            "rollback tank/x",
            "rollback tank/y",
            "destroy tank/x@fourth",
            "destroy tank/y@two",
            "churn tank/x",
        ],
        &[
            "rollback:tank/x@third",
            "destroy:tank/x@third",
            "destroy:tank/y@one",
        ],
    );
}

#[test]
fn a_clone_is_promoted() {
    goes_on(
        &[
            "promote tank/y",
            "destroy tank/y@first",
            "churn tank/x",
            "destroy tank/y@one",
        ],
        &[
            "destroy:tank/x@third",
            "destroy:tank/x@fourth",
            "destroy:tank/x",
            "destroy:tank/y@second",
        ],
    );
}

/// A bookmark keeps the time of a destroyed snapshot in deadlists, but not in all of these lists.
#[test]
fn bookmarks_have_no_part_in_it() {
    goes_on(
        &[
            "bookmark tank/x#a tank/x@first",
            "bookmark tank/x#b tank/x@third",
            "bookmark tank/y#c tank/y@one",
            "destroy tank/x@first",
            "destroy tank/x@third",
            "destroy tank/y@one",
            "churn tank/x",
            "snapshot tank/x@fifth",
            "destroy tank/x#a",
            "destroy tank/y#c",
        ],
        &[
            "fill:tank/x=100000",
            "fill:tank/y=100000",
            "destroy:tank/x@fourth",
            "destroy:tank/y@two",
            "rollback:tank/x@fifth",
        ],
    );
}

/// Destroys what has lists, and notes obsolete pointers one by one.
async fn destroy_slowly(pool: &Pool) {
    pool.hierarchy().set_background_blocks(1);
    for operation in [
        "destroy tank/y@two",
        "destroy tank/y@one",
        "destroy tank/y",
        "destroy tank/x@third",
        "destroy tank/x@first",
        "destroy tank/x@second",
        "destroy tank/x@fourth",
    ] {
        operate(pool, operation).await;
    }
}

/// Either side goes on with what waits to be noted, after an export and after a power cut at any moment.
#[test]
fn obsolete_pointers_wait() {
    let Some(world) = replaced_pointers() else {
        return;
    };
    let moments: Rc<RefCell<VecDeque<Moment>>> = Rc::default();
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        let (probed, kept) = (world.clone(), moments.clone());
        world.set_probe(
            100,
            Rc::new(move || {
                kept.borrow_mut().push_back(probed.capture());
                61
            }),
        );
        destroy_slowly(&pool).await;
        assert!(waiting(&pool).await.is_some(), "pointers wait");
        pool.export().await.expect("export");
    });
    run(&world, async |handle| {
        let found = find(&handle, DISKS).await;
        let readonly = ImportPolicy {
            readonly: true,
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], readonly).await;
        let pool = pool.expect("a read-only import");
        assert!(waiting(&pool).await.is_some(), "they wait in the pool");
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "obsolete pointers wait");
    let theirs = by_openzfs(&world, DISKS, &["waitfree:tank", "scrub:tank"]);
    zdb_clean(&theirs.expect("OpenZFS was there"), "noted by OpenZFS");
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        all_noted(&pool).await;
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "noted here");
    let moments = moments.take();
    assert!(moments.len() > 5, "{} moments", moments.len());
    for (index, moment) in moments.iter().enumerate().step_by(moments.len() / 5) {
        let cut = moment.cut(index as u64, None);
        run(&cut, async |handle| {
            let pool = import_here(&handle).await;
            all_noted(&pool).await;
            pool.export().await.expect("export");
        });
        zdb_clean(&cut, &format!("cut at moment {index} of {}", moments.len()));
    }
}

/// Changes the meta-objset of a pool in which pointers wait, and closes it as it is.
fn damaged(change: impl AsyncFnOnce(&Hierarchy, ObjectId, &Tx) + 'static) -> Option<World> {
    let world = replaced_pointers()?;
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        destroy_slowly(&pool).await;
        let list = waiting(&pool).await.expect("pointers wait");
        let changed = pool.hierarchy().submit("damage", async move |this, tx| {
            change(this, list, tx).await;
            Ok(())
        });
        changed.await.expect("change");
        // Not exported: that goes on with the list.
    });
    Some(world)
}

async fn counts(mos: &dmu::Objset, list: ObjectId) -> (BpobjPhys, Vec<u8>) {
    let bytes = mos.bonus(list).await.expect("bonus").bytes.to_vec();
    (BpobjPhys::decode(&bytes).expect("decodes"), bytes)
}

async fn set_counts(
    mos: &dmu::Objset,
    list: ObjectId,
    phys: BpobjPhys,
    mut bytes: Vec<u8>,
    tx: &Tx,
) {
    bytes[..BpobjPhys::SIZE].copy_from_slice(&phys.encode());
    let set = mos.set_bonus(list, ObjectType::BPOBJ_HDR, &bytes, tx).await;
    set.expect("set the bonus");
}

/// What has no place in a table is passed over, and all else noted.
#[test]
fn a_pointer_to_nowhere_is_passed_over() {
    let world = damaged(async |hierarchy, list, tx| {
        let mos = hierarchy.mos();
        let (mut phys, bytes) = counts(mos, list).await;
        for (vdev, sectors, offset) in [(9999_u64, 8_u64, 0_u64), (0, 8, 1 << 40), (3, 8, 4096)] {
            let mut pointer = [0; 128];
            pointer[..8].copy_from_slice(&(vdev << 32 | sectors).to_le_bytes());
            pointer[8..16].copy_from_slice(&offset.to_le_bytes());
            let at = phys.num_blkptrs * 128;
            let written = mos.write(list, at, &pointer, tx).await;
            written.expect("write");
            phys.num_blkptrs += 1;
        }
        set_counts(mos, list, phys, bytes, tx).await;
    });
    let Some(world) = world else {
        return;
    };
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        for _ in 0..3 {
            pool.sync().await.expect("sync");
        }
        assert_eq!(waiting(&pool).await, None);
        let error = pool.hierarchy().background_error().expect("noticed");
        assert!(error.to_string().contains("obsolete pointers"), "{error}");
        assert_eq!(pool.status().freeing_stopped, Some(error.to_string()));
        pool.export().await.expect("export");
    });
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "pointers to nowhere");
}

/// The pool is used on, and its blocks are where they were.
#[test]
fn an_unreadable_part_of_the_list_stays() {
    let world = damaged(async |hierarchy, list, tx| {
        let mos = hierarchy.mos();
        let (mut phys, bytes) = counts(mos, list).await;
        // The directory does not name lists.
        (phys.subobjs, phys.num_subobjs) = (DIRECTORY.0, 3);
        set_counts(mos, list, phys, bytes, tx).await;
    });
    let Some(world) = world else {
        return;
    };
    run(&world, async |handle| {
        let pool = import_here(&handle).await;
        churn(&pool, "tank/x").await;
        assert!(waiting(&pool).await.is_some());
        let error = pool.hierarchy().background_error().expect("noticed");
        assert!(error.to_string().contains("object 0"), "{error}");
        assert_eq!(pool.status().freeing_stopped, Some(error.to_string()));
        scrub_is_clean(&pool).await;
        pool.export().await.expect("export");
    });
}

/// Such a pool is still read.
#[test]
fn what_is_no_list_is_refused() {
    let world = damaged(async |hierarchy, _, tx| {
        let mos = hierarchy.mos();
        let other = zap::ZapValue::U64(vec![DIRECTORY.0]);
        let set = zap::update(mos, DIRECTORY, OBSOLETE, &other, tx).await;
        set.expect("update");
    });
    let Some(world) = world else {
        return;
    };
    run(&world, async |handle| {
        let found = find(&handle, DISKS).await;
        let refused = Pool::import(&handle, &found[0], policy()).await;
        let error = refused.err().expect("it is damaged").to_string();
        assert!(error.contains("block pointer list"), "{error}");
        let readonly = ImportPolicy {
            readonly: true,
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], readonly).await;
        pool.expect("a read-only import");
    });
}
