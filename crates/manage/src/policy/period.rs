//! How often snapshots are taken.

/// How often a class of snapshots is taken. In the order of their lengths; a cron expression, whose length is not known, is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// At the times of a cron expression.
    Cron(Box<str>),
    /// Every so many minutes, from the full hour.
    Minutes(u32),
    /// At the full hour.
    Hourly,
    /// Once a day.
    Daily,
    /// Once a week.
    Weekly,
    /// On the first day of the month.
    Monthly,
    /// On the first of January.
    Yearly,
}

impl Period {
    /// Returns the name of the class, as it stands in [`super::CLASSES_PROPERTY`] and in names of snapshots.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Cron(_) => "cron".to_owned(),
            Self::Minutes(minutes) => format!("{minutes}min"),
            Self::Hourly => "hourly".to_owned(),
            Self::Daily => "daily".to_owned(),
            Self::Weekly => "weekly".to_owned(),
            Self::Monthly => "monthly".to_owned(),
            Self::Yearly => "yearly".to_owned(),
        }
    }
}
