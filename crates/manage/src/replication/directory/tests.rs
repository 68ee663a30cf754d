//! Streams that go by a disk, between modelled sides.

use super::super::simulation::Side;
use super::manifest::file_number;
use super::parts::{CHUNK_BYTES, PartReader, PartWriter};
use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn job() -> Job {
    toml::from_str("name = 'j'\nfrom = 'tank/a'\nto = 'back/a'\nrecursive = true\n").expect("a job")
}

fn sides() -> (Side, Side) {
    let (source, target) = (Side::new(1), Side::new(1 << 40));
    for name in ["tank/a", "tank/a/one"] {
        source.model().make(name);
        for snapshot in ["x", "y"] {
            source.model().snapshot(&format!("{name}@{snapshot}"));
        }
    }
    (source, target)
}

async fn exported(source: &Side, directory: &Path) -> PathBuf {
    let progress = Arc::default();
    let exported = export(&job(), source, directory, &progress, NOW).await;
    let (streams, report) = exported.expect("exports");
    assert_eq!(report.problems, []);
    streams
}

async fn imported(streams: &Path, target: &Side) -> Result<Report, ReplicationError> {
    let imported = import(streams, None, target, &Arc::default(), NOW).await;
    imported.map(|(_, report)| report)
}

fn files(streams: &Path) -> Vec<String> {
    let entries = fs::read_dir(streams).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("a name")).collect();
    names.sort();
    names
}

fn guids(side: &Side) -> Vec<Vec<u64>> {
    let model = side.model();
    let points =
        |dataset: &ReplicaDataset| dataset.snapshots.iter().map(|point| point.guid).collect();
    model.datasets.values().map(points).collect()
}

#[tokio::test]
async fn a_disk_goes_there_and_back() {
    let (source, target) = sides();
    let disk = tempfile::tempdir().expect("a disk");
    let streams = exported(&source, disk.path()).await;
    assert_eq!(files(&streams).len(), 5, "four streams and the manifest");
    // Again, before it is brought there: nothing is written twice.
    assert_eq!(exported(&source, disk.path()).await, streams);
    assert_eq!(files(&streams).len(), 5);
    let report = imported(&streams, &target).await.expect("imports");
    assert_eq!(report.sent.len(), 4);
    assert_eq!(guids(&source), guids(&target));
    // Again: there is nothing left to receive.
    let report = imported(&streams, &target).await.expect("imports");
    assert_eq!(report.sent, [""; 0]);
    // The disk came back: it has room again, and takes what is new.
    source.model().snapshot("tank/a@z");
    assert_eq!(exported(&source, disk.path()).await, streams);
    let stream = files(&streams)
        .into_iter()
        .filter(|name| file_number(name).is_some());
    assert_eq!(stream.collect::<Vec<_>>(), ["stream-000005.000"]);
    let report = imported(&streams, &target).await.expect("imports");
    assert_eq!(report.sent, ["back/a@z"]);
    assert_eq!(guids(&source), guids(&target));
    // From then on over a network, as if it had always been so.
    source.model().snapshot("tank/a/one@z");
    let report = run(&job(), &source, &target, &Arc::default(), NOW).await;
    let report = report.expect("runs");
    assert_eq!(
        (report.sent, report.problems),
        (vec!["back/a/one@z".to_owned()], vec![])
    );
}

#[tokio::test]
async fn a_damaged_stream_is_not_received() {
    let (source, target) = sides();
    let disk = tempfile::tempdir().expect("a disk");
    let streams = exported(&source, disk.path()).await;
    let second = streams.join("stream-000002.000");
    let whole = fs::read(&second).expect("reads");
    for damage in [whole[1..].to_vec(), [b"x", &whole[1..]].concat()] {
        fs::write(&second, damage).expect("writes");
        let report = imported(&streams, &target).await.expect("runs");
        let (dataset, error) = &report.problems[0];
        assert_eq!(dataset, "tank/a");
        assert!(error.to_string().contains("damaged: 'tank/a@y'"), "{error}");
        assert_eq!(target.model().datasets["back/a"].snapshots.len(), 1);
    }
    fs::write(&second, whole).expect("writes");
    imported(&streams, &target).await.expect("imports");
    assert_eq!(guids(&source), guids(&target));
}

#[tokio::test]
async fn a_disk_of_another_source_and_what_is_none_is_refused() {
    let (source, target) = sides();
    let disk = tempfile::tempdir().expect("a disk");
    let error = imported(disk.path(), &target).await.expect_err("refused");
    assert!(
        error.to_string().contains("sanbox replication export"),
        "{error}"
    );
    let streams = exported(&source, disk.path()).await;
    let other = Job {
        from: "tank/b".to_owned(),
        ..job()
    };
    let refused = export(&other, &source, disk.path(), &Arc::default(), NOW).await;
    let error = refused.expect_err("refused");
    assert!(
        error.to_string().contains("holds streams of 'tank/a'"),
        "{error}"
    );
    let manifest = fs::read_to_string(streams.join(MANIFEST)).expect("reads");
    for (from, to) in [
        ("stream-000001.000", "../../etc/passwd"),
        ("source = \"tank/a/one\"", "source = \"rpool/b\""),
        ("version = 1", "version = 2"),
        ("name = \"j\"", "name = \"../j\""),
        ("guid", "number"),
    ] {
        let hostile = manifest.replace(from, to);
        assert_ne!(hostile, manifest, "{from}");
        fs::write(streams.join(MANIFEST), hostile).expect("writes");
        imported(&streams, &target).await.expect_err(to);
        let exported = export(&job(), &source, disk.path(), &Arc::default(), NOW).await;
        // An export has a job of its own.
        assert_eq!(exported.is_err(), !from.starts_with("name"), "{to}");
        assert!(target.model().datasets.is_empty());
    }
}

/// An export that ends anywhere is gone on with by the next one, and what it has is imported before that, too.
#[tokio::test]
async fn an_interrupted_export_keeps_what_is_whole() {
    let (source, _) = sides();
    for kept in 0..=4 {
        let disk = tempfile::tempdir().expect("a disk");
        let streams = exported(&source, disk.path()).await;
        let read = |name: &str| fs::read_to_string(streams.join(name)).expect("reads");
        let all = Manifest::read(&streams).expect("reads").expect("is there");
        let mut begun = all.clone();
        begun.stream.clear();
        begun.write(&streams).expect("writes");
        for stream in &all.stream[..kept] {
            append(&streams, stream).expect("writes");
        }
        let mut lines = if kept == 0 {
            String::new()
        } else {
            read("added.jsonl")
        };
        // Half of a line, and a line that the manifest has already.
        lines.push_str("{\"source\":\"tank");
        fs::write(streams.join("added.jsonl"), &lines).expect("writes");
        let target = Side::new(1 << 40);
        if kept > 0 {
            let report = imported(&streams, &target).await.expect("imports");
            assert_eq!(report.sent.len(), kept);
        }
        fs::remove_file(streams.join(manifest::RECEIVED)).unwrap_or_default();
        assert_eq!(exported(&source, disk.path()).await, streams);
        assert!(!streams.join("added.jsonl").exists(), "{kept}");
        let again = Manifest::read(&streams).expect("reads").expect("is there");
        assert_eq!(again.stream.len(), 4, "{kept}");
        fs::write(streams.join("added.jsonl"), &lines).expect("writes");
        let twice = Manifest::read(&streams).expect("reads").expect("is there");
        assert_eq!(twice.stream.len(), 4, "{kept}");
        imported(&streams, &target).await.expect("imports");
        assert_eq!(guids(&source), guids(&target), "{kept}");
        fs::write(streams.join("added.jsonl"), "{}\n").expect("writes");
        imported(&streams, &target).await.expect_err("damaged");
    }
}

/// A stream that is longer than a part, cut anywhere, comes out as it went in.
#[tokio::test]
async fn parts_are_whole() {
    let disk = tempfile::tempdir().expect("a disk");
    let mut writer = PartWriter {
        directory: disk.path(),
        number: 7,
        parts: Vec::new(),
        open: None,
    };
    let pattern = (0..=u8::MAX).cycle();
    let bytes: Vec<u8> = pattern.take(3 * CHUNK_BYTES + 17).collect();
    for chunk in bytes.chunks(777_777) {
        writer.write(chunk).expect("writes");
    }
    writer.end().expect("ends");
    let parts = std::mem::take(&mut writer.parts);
    let paths: Vec<_> = parts
        .into_iter()
        .map(|part| (disk.path().join(&part.file), part))
        .collect();
    let mut reader = PartReader {
        parts: paths.into_iter(),
        open: None,
        what: "tank@a".to_owned(),
    };
    let mut read = Vec::new();
    while let Some(chunk) = reader.next().expect("reads") {
        read.extend(chunk);
    }
    assert!(read == bytes);
}
