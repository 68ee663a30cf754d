//! Security flavours: how sure it is who calls, and what protects a call (exports(5), `sec`).

use super::error::GrammarError;

/// A flavour, as `sec=` names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flavour {
    /// The client says who calls. Calls without any identity count as this, too.
    #[default]
    Sys,
    /// Kerberos makes sure who calls.
    Krb5,
    /// So, and what is sent cannot be changed on its way.
    Krb5i,
    /// So, and what is sent cannot be read on its way.
    Krb5p,
}

impl Flavour {
    const ALL: [Self; 4] = [Self::Sys, Self::Krb5, Self::Krb5i, Self::Krb5p];

    /// Returns its name in `sec=`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sys => "sys",
            Self::Krb5 => "krb5",
            Self::Krb5i => "krb5i",
            Self::Krb5p => "krb5p",
        }
    }

    /// Returns its number in the lists of MOUNT: the flavour of RPC, or the pseudo flavour (RFC 2623, section 2.2.3).
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Sys => 1,
            Self::Krb5 => 390_003,
            Self::Krb5i => 390_004,
            Self::Krb5p => 390_005,
        }
    }
}

/// The flavours that a share takes, the one that it wants most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flavours([Option<Flavour>; 4]);

impl Default for Flavours {
    /// As exports(5): `sys`.
    fn default() -> Self {
        Self([Some(Flavour::Sys), None, None, None])
    }
}

impl Flavours {
    /// All that there are.
    pub const ALL: Self = Self([
        Some(Flavour::Sys),
        Some(Flavour::Krb5),
        Some(Flavour::Krb5i),
        Some(Flavour::Krb5p),
    ]);

    /// Reads a list: names with colons between them.
    pub(super) fn parse(list: &str) -> Result<Self, GrammarError> {
        let mut found = Vec::new();
        for name in list.split(':') {
            let known = Flavour::ALL.into_iter().find(|known| known.name() == name);
            let flavour = known.ok_or_else(|| GrammarError::Flavour {
                flavour: name.to_owned(),
            })?;
            if !found.contains(&flavour) {
                found.push(flavour);
            }
        }
        let mut flavours = [None; 4];
        for (place, flavour) in flavours.iter_mut().zip(found) {
            *place = Some(flavour);
        }
        Ok(Self(flavours))
    }

    /// Returns them in their order.
    pub fn iter(self) -> impl Iterator<Item = Flavour> {
        self.0.into_iter().flatten()
    }

    /// Returns whether calls may have a flavour.
    #[must_use]
    pub fn allow(self, flavour: Flavour) -> bool {
        self.0.contains(&Some(flavour))
    }
}
