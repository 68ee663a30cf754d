//! Feature counts, and that what needs a feature has it.

use std::collections::BTreeMap;

use ondisk::NvList;
use ondisk::feature::Feature;

use super::blocks::Checker;
use super::objset::Tree;
use super::report::Kind;
use super::usage::Usage;
use super::zap::Zap;

/// Features that are active from the moment they are enabled, with count 1.
const ALWAYS_ONE: &[&str] = &[
    "org.illumos:lz4_compress",
    "com.delphix:hole_birth",
    "com.delphix:embedded_data",
    "com.delphix:spacemap_v2",
    "com.delphix:head_errlog",
];

impl Checker<'_> {
    /// Compares every feature's count with what was found in the pool.
    pub(super) fn check_features(
        &mut self,
        mos: &Tree,
        directory: &Zap,
        config: &NvList,
        usage: &mut Usage,
    ) {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for (name, for_write) in [("features_for_read", false), ("features_for_write", true)] {
            let Some(object) = directory.u64(name) else {
                self.report
                    .error(Kind::Feature, format!("the object directory has no {name}"));
                continue;
            };
            usage.mark(object, "features");
            for (guid, count) in self.read_zap(mos, object).iter().flat_map(Zap::pairs) {
                match Feature::by_guid(&guid) {
                    None => self.report.note(
                        Kind::NotChecked,
                        format!("unknown feature {guid} with count {count}"),
                    ),
                    Some(f) if f.read_only_compatible != for_write => {
                        self.report
                            .error(Kind::Feature, format!("{guid} is in {name}"));
                    }
                    Some(_) => {}
                }
                counts.insert(guid, count);
            }
        }
        let mut enabled = 0;
        if let Some(object) = directory.u64("feature_enabled_txg") {
            usage.mark(object, "feature txgs");
            enabled = self
                .read_zap(mos, object)
                .map_or(0, |z| z.entries.len() as u64);
        }
        let mut expect = |guid: &str, want: u64| {
            if let Some(count) = counts.get(guid)
                && *count != want
            {
                self.report.error(
                    Kind::Feature,
                    format!("{guid} is counted {count} times, used {want} times"),
                );
            } else if want > 0 && !counts.contains_key(guid) {
                self.report.error(
                    Kind::Feature,
                    format!("{guid} is used {want} times but not enabled"),
                );
            }
        };
        expect("com.delphix:enabled_txg", enabled);
        expect("com.delphix:spacemap_histogram", usage.histograms);
        expect("com.delphix:extensible_dataset", usage.zapified);
        expect("com.delphix:empty_bpobj", usage.empty_bpobj);
        expect("com.delphix:livelist", usage.livelists);
        expect("com.fudosecurity:block_cloning", usage.clone_tables);
        expect("com.delphix:bookmarks", usage.bookmarks);
        expect("com.delphix:redaction_bookmarks", usage.redaction_lists);
        expect("com.delphix:device_removal", usage.removals);
        let shapes = self.tops.values().filter_map(|top| top.raidz.as_ref());
        let expansions = shapes.map(|shape| shape.expansion.count()).sum();
        expect("org.openzfs:raidz_expansion", expansions);
        expect("com.delphix:obsolete_counts", usage.obsolete_counts);
        expect(
            "com.delphix:log_spacemap",
            u64::from(directory.u64("com.delphix:log_spacemap_zap").is_some()),
        );
        expect(
            "com.delphix:async_destroy",
            u64::from(directory.u64("bptree_obj").is_some()),
        );
        for guid in ALWAYS_ONE {
            if counts.contains_key(*guid) {
                expect(guid, 1);
            }
        }
        for f in ondisk::feature::ALL.iter().filter(|f| f.per_dataset) {
            expect(f.guid, usage.per_dataset.get(f.guid).copied().unwrap_or(0));
        }
        self.check_label_features(config, &counts);
    }

    fn check_label_features(&mut self, config: &NvList, counts: &BTreeMap<String, u64>) {
        let listed: Vec<&str> = config
            .list("features_for_read")
            .map(|l| l.names().collect())
            .unwrap_or_default();
        for f in ondisk::feature::ALL.iter().filter(|f| f.needed_by_mos) {
            let active = counts.get(f.guid).is_some_and(|c| *c > 0);
            if active != listed.contains(&f.guid) {
                let text = format!(
                    "{} is active: {active}, listed in the configuration: {}",
                    f.guid, !active
                );
                self.report.error(Kind::Feature, text);
            }
        }
    }
}
