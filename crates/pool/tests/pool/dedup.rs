//! Deduplicated blocks whose places are not as many as their copies: gangs, which have one more.

use dsl::property::{DatasetKind, Property, Setting, Value};
use dsl::{Estimate, NewDataset};
use pool::Pool;

use crate::support::*;
use crate::workload::make;

/// Longer than the blocks of the table, which are no gangs here.
const BLOCK: usize = 64 << 10;

/// Writes the same gang four times; checks entries, blocks and references of the tables, and lets zdb count them.
fn check(form: &str, expected: (u64, u64, u64)) {
    let world = world(4_402, 1, 256 * MIB);
    run(&world, async |handle| {
        let mut spec = spec(single());
        let feature = ("feature@fast_dedup".to_owned(), form.to_owned());
        spec.properties.push(feature);
        spec.tuning.blocks.gang_above_bytes = 40 << 10;
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create the pool");
        let mut rng = world::Rng::new(78);
        let mut bytes = vec![0; BLOCK];
        rng.fill(&mut bytes);
        for copies in [1, 2] {
            let native = |property, number| Setting::Native(property, Value::Number(number));
            let new = NewDataset {
                name: format!("tank/copies{copies}"),
                kind: DatasetKind::Filesystem,
                settings: vec![native(Property::Dedup, 1), native(Property::Copies, copies)],
                creator: 0,
                key: None,
            };
            pool.hierarchy()
                .create_dataset(new, empty_root)
                .await
                .expect("create");
        }
        for copies in [1, 2, 1, 2] {
            let name = format!("tank/copies{copies}");
            let dataset = pool.hierarchy().dataset(&name).await.expect("there");
            let object = make(&dataset, BLOCK).await;
            let tx = dataset
                .begin(Estimate::bytes(1 << 20))
                .await
                .expect("begin");
            let written = dataset.objset().write(object, 0, &bytes, &tx).await;
            written.expect("write");
            drop(tx);
            pool.sync().await.expect("sync");
        }
        let statistics = pool.dedup_statistics().await.expect("statistics");
        let blocks: u64 = statistics.rows.iter().map(|row| row[0]).sum();
        let references: u64 = statistics.rows.iter().map(|row| row[4]).sum();
        assert_eq!((statistics.entries, blocks, references), expected);
        pool.export().await.expect("export");
    });
    zdb_clean(&world, "gangs that are deduplicated");
}

#[test]
fn gangs_are_shared_by_tables_that_can_count_them() {
    check("enabled", (1, 1, 4));
    check("disabled", (0, 0, 0));
}
