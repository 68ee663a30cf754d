//! Which objects of the meta object set are used, and by what.

use std::collections::BTreeMap;

use super::blocks::Checker;
use super::objset::Tree;
use super::report::Kind;

/// Marks of used objects, and counts that features must equal.
#[derive(Debug, Default)]
pub(super) struct Usage {
    marks: BTreeMap<u64, &'static str>,
    twice: Vec<(u64, &'static str, &'static str)>,
    /// Space maps with a histogram.
    pub(super) histograms: u64,
    /// References to the shared empty list.
    pub(super) empty_bpobj: u64,
    /// The shared empty list.
    pub(super) empty_list: u64,
    /// Livelists of clones, also of destroyed ones.
    pub(super) livelists: u64,
    /// Datasets and directories whose objects were made ZAPs.
    pub(super) zapified: u64,
    pub(super) bookmarks: u64,
    /// Bookmarks with a redaction list.
    pub(super) redaction_lists: u64,
    /// Vdevs that were removed or are being emptied, and what is kept of what is obsolete there.
    pub(super) removals: u64,
    pub(super) obsolete_counts: u64,
    /// Vdevs with a table of cloned blocks.
    pub(super) clone_tables: u64,
    /// By feature guid: datasets that use it.
    pub(super) per_dataset: BTreeMap<String, u64>,
}

impl Usage {
    /// Marks an object; 0 means none.
    pub(super) fn mark(&mut self, object: u64, what: &'static str) {
        if object != 0
            && let Some(old) = self.marks.insert(object, what)
        {
            self.twice.push((object, old, what));
        }
    }
}

impl Checker<'_> {
    /// Every object of the meta object set must be used exactly once.
    pub(super) fn check_usage(&mut self, mos: &Tree, usage: &Usage) {
        for (object, a, b) in &usage.twice {
            self.report.error(
                Kind::Linkage,
                format!("object {object} is used as {a} and as {b}"),
            );
        }
        for (object, dnode) in &mos.objects {
            if !usage.marks.contains_key(object) {
                let text = format!(
                    "object {object} ({}) of the meta object set is not used",
                    dnode.object_type
                );
                self.report.error(Kind::MosLeak, text);
            }
        }
        for (object, what) in &usage.marks {
            if !mos.objects.contains_key(object) {
                self.report.error(
                    Kind::Linkage,
                    format!("object {object} ({what}) does not exist"),
                );
            }
        }
    }
}

impl Usage {
    /// Marks an object that several may use.
    pub(super) fn mark_shared(&mut self, object: u64) {
        if object != 0 {
            self.marks.entry(object).or_insert("shared");
        }
    }
}
