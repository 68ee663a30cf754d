//! File systems and volumes in pages, in the order of their names, parents first: a page costs what is on it, not what the pool has.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::zap::{self, ZapValue};
use ondisk::ObjectId;

use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::list::PropertySelection;
use crate::types::DatasetProperties;

/// Names looked at for one page: what a filter that matches little may cost.
const PAGE_EXAMINED_MAX: usize = 8192;

/// File systems and volumes, component by component in the order of their names, a parent before what is below it.
#[derive(Clone, Debug, Default)]
pub struct DatasetPage {
    /// Those whose names match; fewer than asked for, or none, where few of those looked at do.
    pub datasets: Vec<DatasetProperties>,
    /// The last name that was looked at, behind which the next page begins; none where none was.
    pub last: Option<String>,
    /// There are more behind `last`.
    pub more: bool,
}

/// What of a page's walk is left to do: a directory by its parent, or the one that it begins at.
enum Step {
    Start(Rc<DslDir>),
    Child(Rc<DslDir>, String, ObjectId),
}

/// How a name stands to the one that a page begins behind.
#[derive(Debug, PartialEq, Eq)]
enum PagePosition {
    /// It and all below it come before.
    Before,
    /// It comes before, and what comes behind may be below it.
    Above,
    /// It comes behind.
    Behind,
}

fn place(name: &str, after: Option<&str>) -> PagePosition {
    let Some(after) = after else {
        return PagePosition::Behind;
    };
    match name.split('/').cmp(after.split('/')) {
        Ordering::Greater => PagePosition::Behind,
        Ordering::Equal => PagePosition::Above,
        Ordering::Less => {
            let below = after.strip_prefix(name);
            match below.is_some_and(|rest| rest.starts_with('/')) {
                true => PagePosition::Above,
                false => PagePosition::Before,
            }
        }
    }
}

impl DslPool {
    /// The names and objects of the directories in one that are listed, in the order of their names.
    async fn child_entries(&self, dir: &DslDir) -> Result<BTreeMap<String, ObjectId>> {
        let map = ObjectId(dir.phys().child_dir_zapobj);
        let mut children = BTreeMap::new();
        for entry in zap::entries(&self.mos, map).await? {
            let (Ok(name), ZapValue::U64(value)) = (String::from_utf8(entry.name), entry.value)
            else {
                return Err(DslError::corrupt("child map", map));
            };
            // Those of the pool itself, and what a receive fills.
            if !name.starts_with(['$', '%']) {
                children.insert(name, ObjectId(value.first().copied().unwrap_or(0)));
            }
        }
        Ok(children)
    }
}

impl Hierarchy {
    /// Returns the file systems and volumes at and below `root` that come behind `after` (none: all), whether that exists or not: at
    /// most `max` whose names contain `filter`, with the properties named. Of those before and behind the page neither their own
    /// objects are read nor, where a whole subtree is, what is below.
    ///
    /// # Errors
    /// There is no such dataset; errors of reading.
    pub async fn dataset_page(
        &self,
        root: &str,
        after: Option<&str>,
        filter: &str,
        max: usize,
        wanted: &[String],
    ) -> Result<DatasetPage> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let selection = PropertySelection::these(wanted);
        let missing = || DslError::NotFound { name: root.into() };
        let start = pool.find_dir(root).await?.ok_or_else(missing)?;
        let mut page = DatasetPage::default();
        let mut scope = None;
        let mut examined = 0;
        let mut work = vec![(root.to_owned(), Step::Start(start))];
        while let Some((name, step)) = work.pop() {
            let place = place(&name, after);
            if place == PagePosition::Before {
                continue;
            }
            let is_match = place == PagePosition::Behind && name.contains(filter);
            if is_match && page.datasets.len() >= max || examined >= PAGE_EXAMINED_MAX {
                page.more = true;
                break;
            }
            let dir = match step {
                Step::Start(dir) => dir,
                Step::Child(parent, child, object) => {
                    pool.child_by_object(&parent, &child, object).await?
                }
            };
            let children = pool.child_entries(&dir).await?;
            let below = |(child, object): (String, ObjectId)| {
                let below = format!("{name}/{child}");
                (below, Step::Child(dir.clone(), child, object))
            };
            work.extend(children.into_iter().rev().map(below));
            if is_match {
                let listed = pool.head_info(&dir, &selection).await?;
                let found = pool.properties_of(listed, &selection, &mut scope).await?;
                page.datasets.push(found);
            }
            if place == PagePosition::Behind {
                page.last = Some(name);
            }
            examined += 1;
            pool.yield_every(examined).await;
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_subtrees_before_a_page_are_passed_over() {
        for (name, after, expect) in [
            ("tank", None, PagePosition::Behind),
            ("tank", Some("tank"), PagePosition::Above),
            ("tank", Some("tank/b/c"), PagePosition::Above),
            ("tank/a", Some("tank/b"), PagePosition::Before),
            ("tank/a", Some("tank/a-b"), PagePosition::Before),
            ("tank/a-b", Some("tank/a/b"), PagePosition::Behind),
            ("tank/b", Some("tank/b/c"), PagePosition::Above),
            ("tank/b/d", Some("tank/b/c"), PagePosition::Behind),
            ("pool", Some("tank"), PagePosition::Before),
        ] {
            assert_eq!(place(name, after), expect, "{name} behind {after:?}");
        }
    }
}
