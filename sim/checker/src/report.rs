//! What a check found.

use std::fmt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth telling, but possible in a healthy pool.
    Note,
    /// The pool is damaged, or something that writes it is wrong.
    Error,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Label,
    Uberblock,
    Config,
    /// A copy of a block does not match its checksum.
    Checksum,
    /// No copy of a block could be read.
    Unreadable,
    BlockPointer,
    Fill,
    Dnode,
    Objset,
    Zap,
    /// Allocated but not referenced.
    Leak,
    /// Referenced but not allocated.
    Unallocated,
    /// Allocated or referenced twice.
    Double,
    SpaceMap,
    Accounting,
    Linkage,
    Deadlist,
    Bpobj,
    Feature,
    MosLeak,
    IntentLog,
    History,
    Directory,
    LinkCount,
    Unlinked,
    SystemAttributes,
    UserAccounting,
    /// Something this checker does not judge.
    NotChecked,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub kind: Kind,
    /// A sentence that names the place.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {:?}: {}", self.kind, self.text)
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Name of the pool, when a label could be read.
    pub pool: Option<String>,
    /// The txg of the uberblock that was followed.
    pub txg: u64,
    pub findings: Vec<Finding>,
    /// Findings beyond those kept.
    pub suppressed: u64,
    /// Distinct blocks verified.
    pub blocks: u64,
    /// Copies read and verified.
    pub copies: u64,
    /// Bytes allocated according to the space maps.
    pub allocated_bytes: u64,
    /// Bytes reached through block pointers.
    pub reached_bytes: u64,
    pub datasets: u64,
    pub objects: u64,
    pub files: u64,
}

/// Enough to see a pattern, few enough to keep a hostile image from filling memory.
const FINDINGS_MAX: usize = 2000;

impl Report {
    /// True when there are no errors (notes do not count).
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors().next().is_none()
    }

    /// The errors.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|f| f.severity == Severity::Error)
    }

    /// True when there is an error of this kind.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.errors().any(|f| f.kind == kind)
    }

    pub(super) fn error(&mut self, kind: Kind, text: impl Into<String>) {
        self.add(Severity::Error, kind, text.into());
    }

    pub(super) fn note(&mut self, kind: Kind, text: impl Into<String>) {
        self.add(Severity::Note, kind, text.into());
    }

    pub(super) fn add(&mut self, severity: Severity, kind: Kind, text: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding {
                severity,
                kind,
                text,
            });
        } else {
            self.suppressed += 1;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        if self.suppressed > 0 {
            writeln!(f, "... and {} more", self.suppressed)?;
        }
        write!(
            f,
            "pool {} at txg {}: {} blocks ({} copies), {} datasets, {} objects, {} files, {} bytes allocated, {} reached: {}",
            self.pool.as_deref().unwrap_or("?"),
            self.txg,
            self.blocks,
            self.copies,
            self.datasets,
            self.objects,
            self.files,
            self.allocated_bytes,
            self.reached_bytes,
            if self.is_clean() {
                "clean"
            } else {
                "NOT CLEAN"
            }
        )
    }
}
