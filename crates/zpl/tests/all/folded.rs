//! Names without regard to case: what is kept of a directory for them agrees with the directory, whatever happens to its names.

use std::collections::BTreeSet;

use runtime::Handle;
use zpl::{CaseSensitivity, CreateMode, Cred, FileId, Fs, FsError, RootProps, SetAttr};

use crate::rig::{self, Rig};

/// What the model says: the names that are the wanted one but for case.
fn equal(names: &BTreeSet<String>, wanted: &str) -> Vec<Vec<u8>> {
    let upper = wanted.to_uppercase();
    let equal = names.iter().filter(|name| name.to_uppercase() == upper);
    equal.map(|name| name.clone().into_bytes()).collect()
}

async fn check_all(fs: &Fs, dir: FileId, names: &BTreeSet<String>, wanted: &[String]) {
    for name in wanted {
        let found = fs.real_name(dir, name.as_bytes(), &Cred::root()).await;
        match (found, equal(names, name)) {
            (Err(FsError::NotFound), equal) if equal.is_empty() => {}
            (Ok(found), equal) => assert!(equal.contains(&found), "{name}: {found:?}, {equal:?}"),
            (found, equal) => panic!("{name}: {found:?}, {equal:?}"),
        }
    }
}

/// Names of which several differ by case alone.
fn some_names() -> Vec<String> {
    [
        "alpha",
        "Alpha",
        "ALPHA",
        "beta",
        "BeTa",
        "gr\u{fc}n",
        "GR\u{dc}N",
        "\u{3b1}",
        "\u{391}",
        "x",
    ]
    .map(str::to_owned)
    .to_vec()
}

async fn change_at_random(handle: Handle, fs: Fs, dirs: [FileId; 2]) {
    let (root, wanted) = (Cred::root(), some_names());
    let mut names = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..400 {
        let pick =
            |below: usize| usize::try_from(handle.random_u64() % below as u64).expect("small");
        let (from, to, what) = (pick(2), pick(2), pick(6));
        let (name, other) = (
            wanted[pick(wanted.len())].clone(),
            wanted[pick(wanted.len())].clone(),
        );
        let (one, two) = (name.as_bytes(), other.as_bytes());
        match what {
            0 | 1 => {
                let made = fs
                    .create(
                        dirs[from],
                        one,
                        CreateMode::Guarded,
                        &SetAttr::default(),
                        &root,
                    )
                    .await;
                assert_eq!(made.is_ok(), names[from].insert(name));
            }
            2 => assert_eq!(
                fs.remove(dirs[from], one, &root).await.is_ok(),
                names[from].remove(&name)
            ),
            3 => {
                if fs
                    .rename(dirs[from], one, dirs[to], two, &root)
                    .await
                    .is_ok()
                    && (from != to || name != other)
                {
                    // Two names of one file stay.
                    let stays = fs.lookup(dirs[from], one, &root).await.is_ok();
                    assert!(names[from].contains(&name));
                    names[to].insert(other);
                    if !stays {
                        names[from].remove(&name);
                    }
                }
            }
            4 => {
                if let Ok(found) = fs.lookup(dirs[from], one, &root).await
                    && fs.link(found.id, dirs[to], two, &root).await.is_ok()
                {
                    assert!(names[to].insert(other));
                }
            }
            _ => drop(fs.exchange(dirs[from], one, dirs[to], two, &root).await),
        }
        check_all(&fs, dirs[from], &names[from], &wanted).await;
        check_all(&fs, dirs[to], &names[to], &wanted).await;
    }
}

#[test]
fn what_is_kept_agrees_with_the_directory() {
    for case in [CaseSensitivity::Sensitive, CaseSensitivity::Mixed] {
        let props = RootProps {
            case,
            ..RootProps::default()
        };
        rig::run(11, props, |handle, mut rig: Rig| async move {
            let (root, set) = (rig.fs.root(), SetAttr::default());
            let made = rig
                .fs
                .mkdir(root, b"dir", &set, &Cred::root())
                .await
                .expect("makes");
            change_at_random(handle, rig.fs.clone(), [root, made.file.id]).await;
            rig.close().await;
        });
    }
}

#[test]
fn a_name_as_it_is_stored_is_found_where_case_does_not_count() {
    let props = RootProps {
        case: CaseSensitivity::Insensitive,
        ..RootProps::default()
    };
    rig::run(12, props, |_, mut rig: Rig| async move {
        let (fs, root) = (rig.fs.clone(), Cred::root());
        let made = fs
            .create(
                fs.root(),
                b"Alpha",
                CreateMode::Guarded,
                &SetAttr::default(),
                &root,
            )
            .await;
        made.expect("makes");
        assert_eq!(
            fs.real_name(fs.root(), b"ALPHA", &root).await.as_deref(),
            Ok(&b"Alpha"[..])
        );
        assert_eq!(
            fs.real_name(fs.root(), b"beta", &root).await,
            Err(FsError::NotFound)
        );
        rig.close().await;
    });
}

/// A directory with more names than are read at a time, and more directories than are kept.
#[test]
fn many_names_and_directories() {
    rig::run(13, RootProps::default(), |_, mut rig: Rig| async move {
        let (fs, root, set) = (rig.fs.clone(), Cred::root(), SetAttr::default());
        let mut dirs = Vec::new();
        for number in 0..70 {
            let made = fs
                .mkdir(fs.root(), format!("d{number}").as_bytes(), &set, &root)
                .await;
            dirs.push(made.expect("makes").file.id);
        }
        for number in 0..600 {
            let name = format!("File-{number}");
            let found = fs
                .real_name(dirs[0], name.to_lowercase().as_bytes(), &root)
                .await;
            assert_eq!(found, Err(FsError::NotFound));
            let made = fs
                .create(dirs[0], name.as_bytes(), CreateMode::Guarded, &set, &root)
                .await;
            made.expect("makes");
            let other = fs.real_name(dirs[number % 70], b"nothing", &root).await;
            assert_eq!(other, Err(FsError::NotFound));
        }
        let found = fs.real_name(dirs[0], b"FILE-599", &root).await;
        assert_eq!(found.as_deref(), Ok(&b"File-599"[..]));
        rig.close().await;
    });
}

#[test]
fn only_who_may_list_and_search_a_directory_is_told() {
    rig::run(14, RootProps::default(), |_, mut rig: Rig| async move {
        let fs = rig.fs.clone();
        let set = SetAttr {
            mode: Some(0o711),
            ..SetAttr::default()
        };
        let made = fs
            .mkdir(fs.root(), b"dir", &set, &Cred::root())
            .await
            .expect("makes");
        let user = Cred {
            uid: 5,
            gid: 5,
            ..Cred::default()
        };
        assert_eq!(
            fs.real_name(made.file.id, b"x", &user).await,
            Err(FsError::Access)
        );
        rig.close().await;
    });
}
