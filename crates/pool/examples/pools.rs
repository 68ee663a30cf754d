//! Lists the pools in a directory of images and, given a name, imports one read-only and shows it.
//!
//! `cargo run -p pool --example pools -- DIR [NAME]`

#![allow(clippy::print_stdout, reason = "this is a command")]

use std::path::PathBuf;

use pool::{HostIdentity, ImportPolicy, Pool, VdevStatus, discover};
use runtime::Handle;
use runtime::host::{HostConfig, spawn_engine};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("usage: pools DIR [NAME]"));
    let name = arguments.next();
    let engine = spawn_engine("pools", HostConfig::default(), move |handle| async move {
        show(&handle, directory, name).await;
    });
    engine.join().expect("the engine runs to its end");
}

async fn show(handle: &Handle, directory: PathBuf, name: Option<String>) {
    let found = discover(handle, &[directory]).await;
    for (path, reason) in &found.rejected {
        println!("rejected {}: {reason}", path.display());
    }
    for pool in &found.pools {
        println!(
            "pool: {}\n  id: {}\nstate: {} ({:?}, label {:?})",
            pool.name,
            pool.guid,
            pool.health.as_str(),
            pool.reason,
            pool.state
        );
        for detail in &pool.details {
            println!("      {detail}");
        }
        tree(&pool.root, 1);
    }
    let Some(name) = name else { return };
    let candidate = found
        .pools
        .iter()
        .find(|pool| pool.name == name)
        .expect("a pool of that name");
    let policy = ImportPolicy {
        readonly: true,
        force: true,
        host: HostIdentity {
            hostid: 1,
            hostname: "example".into(),
            kernel: String::new(),
        },
        ..ImportPolicy::default()
    };
    let pool = match Pool::import(handle, candidate, policy).await {
        Ok(pool) => pool,
        Err(error) => {
            println!("cannot import '{name}': {error}");
            return;
        }
    };
    tree(&pool.status().root, 0);
    for entry in pool.properties().await.expect("properties") {
        println!(
            "{name}  {:30} {:30} {}",
            entry.name,
            entry.display(),
            entry.source.as_str()
        );
    }
    for record in pool.history().await.expect("history") {
        println!("{} {:?} {:?}", record.time, record.txg, record.event);
    }
    let spec = dsl::ListSpec {
        depth: None,
        kinds: dsl::property::Kinds::ALL,
    };
    for info in pool.hierarchy().list(&name, spec).await.expect("list") {
        println!(
            "{:40} {:12} {:12}",
            info.name, info.space.used, info.space.referenced
        );
    }
    pool.export().await.expect("export");
}

fn tree(vdev: &VdevStatus, depth: usize) {
    let note = vdev.note.as_deref().unwrap_or("");
    println!(
        "{:w$}{}  {}  {note}",
        "",
        vdev.name,
        vdev.health.as_str(),
        w = 2 * depth
    );
    for child in &vdev.children {
        tree(child, depth + 1);
    }
}
