//! An option as it is declared.

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// Letter.
    pub(crate) short: Option<char>,
    /// Long name.
    pub(crate) long: Option<&'static str>,
    /// What its value is called, if it takes one.
    pub(crate) value: Option<&'static str>,
    /// What it does.
    pub(crate) help: &'static str,
}

impl Flag {
    /// The option with its value, as it is written.
    pub(crate) fn spelled(&self) -> String {
        let mut text = match (self.short, self.long) {
            (Some(short), Some(long)) => format!("-{short}, --{long}"),
            (Some(short), None) => format!("-{short}"),
            (None, Some(long)) => format!("--{long}"),
            (None, None) => String::new(),
        };
        if let Some(value) = self.value {
            text.push(' ');
            text.push_str(value);
        }
        text
    }
}

/// A letter without a value.
pub(crate) const fn short(letter: char, help: &'static str) -> Flag {
    Flag {
        short: Some(letter),
        long: None,
        value: None,
        help,
    }
}

/// A letter with a value.
pub(crate) const fn valued(letter: char, value: &'static str, help: &'static str) -> Flag {
    Flag {
        value: Some(value),
        ..short(letter, help)
    }
}

/// A long name without a letter.
pub(crate) const fn long(
    name: &'static str,
    value: Option<&'static str>,
    help: &'static str,
) -> Flag {
    Flag {
        short: None,
        long: Some(name),
        value,
        help,
    }
}

/// A letter that has a long name too.
pub(crate) const fn both(
    letter: char,
    name: &'static str,
    value: Option<&'static str>,
    help: &'static str,
) -> Flag {
    Flag {
        long: Some(name),
        value,
        ..short(letter, help)
    }
}
