//! The persistent reservations of a unit: registrations of initiator ports, the reservation, and what both forbid. SPC-4 section 5.13.

use std::fmt::Write as _;

use super::cdb::CommandClass;
use super::nexus::Port;
use crate::spec::PORTAL_GROUP;

/// Registrations of one unit.
pub(super) const REGISTRATIONS_MAX: usize = 256;

/// Types of persistent reservations. SPC-4 section 6.15.3.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReservationType {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrantsOnly,
            6 => Self::ExclusiveAccessRegistrantsOnly,
            7 => Self::WriteExclusiveAllRegistrants,
            8 => Self::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// Whether every registered initiator port is a holder.
    pub(super) fn is_all_registrants(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants
        )
    }

    pub(super) fn is_registrants_only(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveRegistrantsOnly | Self::ExclusiveAccessRegistrantsOnly
        )
    }
}

/// A registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) port: Port,
    pub(super) key: u64,
}

/// The persistent reservations of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reservations {
    pub(super) generation: u32,
    /// They are to outlive a loss of power.
    pub(super) through_power_loss: bool,
    pub(super) registrations: Vec<Registration>,
    /// Type of the reservation, and its holder; of the all-registrants types, every registered port is one.
    pub(super) held: Option<(ReservationType, Option<Port>)>,
}

impl Reservations {
    /// Writes them as text that [`Reservations::parse`] reads.
    pub(crate) fn text(&self) -> String {
        let (code, holder) = match &self.held {
            None => (0, String::new()),
            Some((held, holder)) => (
                *held as u8,
                holder.as_ref().map(port_text).unwrap_or_default(),
            ),
        };
        let mut text = format!("1 {code} {holder}");
        for registration in &self.registrations {
            let port = port_text(&registration.port);
            let _ = write!(text, " {port}/{:x}", registration.key);
        }
        text
    }

    /// Reads what [`Reservations::text`] wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != "1" {
            return None;
        }
        let code: u8 = words.next()?.parse().ok()?;
        let holder = words.next()?;
        let mut reservations = Self {
            through_power_loss: true,
            ..Self::default()
        };
        for word in words.take(REGISTRATIONS_MAX) {
            let (port, key) = word.rsplit_once('/')?;
            let key = u64::from_str_radix(key, 16).ok()?;
            let port = parse_port(port)?;
            reservations.registrations.push(Registration { port, key });
        }
        reservations.held = match code {
            0 => None,
            code => Some((ReservationType::from_code(code)?, parse_port(holder))),
        };
        Some(reservations)
    }

    pub(super) fn find(&self, port: &Port) -> Option<&Registration> {
        self.registrations.iter().find(|r| r.port == *port)
    }

    pub(super) fn is_holder(&self, port: &Port) -> bool {
        match &self.held {
            Some((held, _)) if held.is_all_registrants() => self.find(port).is_some(),
            Some((_, Some(holder))) => holder == port,
            _ => false,
        }
    }

    /// Whether a command from a port is to be refused.
    pub(super) fn refuses(&self, port: &Port, command: CommandClass) -> bool {
        let Some((held, _)) = &self.held else {
            return false;
        };
        if self.is_holder(port) {
            return false;
        }
        let registered = self.find(port).is_some();
        let (writes, reads) = match held {
            ReservationType::WriteExclusive => (true, false),
            ReservationType::ExclusiveAccess => (true, true),
            ReservationType::WriteExclusiveRegistrantsOnly
            | ReservationType::WriteExclusiveAllRegistrants => (!registered, false),
            ReservationType::ExclusiveAccessRegistrantsOnly
            | ReservationType::ExclusiveAccessAllRegistrants => (!registered, !registered),
        };
        match command {
            CommandClass::Write => writes,
            CommandClass::Read => reads,
            CommandClass::Free | CommandClass::Status | CommandClass::Reserve => false,
        }
    }

    /// Takes a registration away, and the reservation with it if it was the one that held.
    /// Returns the type of a reservation that ended so.
    pub(super) fn remove(&mut self, port: &Port) -> Option<ReservationType> {
        self.registrations.retain(|r| r.port != *port);
        let ends = match &self.held {
            Some((held, _)) if held.is_all_registrants() => self.registrations.is_empty(),
            Some((_, Some(holder))) => holder == port,
            _ => false,
        };
        if ends {
            self.held.take().map(|(held, _)| held)
        } else {
            None
        }
    }
}

fn port_text(port: &Port) -> String {
    let mut text = format!("{}+", port.initiator.replace([' ', '/'], "_"));
    for byte in port.isid {
        let _ = write!(text, "{byte:02x}");
    }
    let _ = write!(text, "/{}", port.group);
    text
}

fn parse_port(text: &str) -> Option<Port> {
    // A holder was once written without its portal group.
    let (text, group) = match text.rsplit_once('/') {
        Some((text, group)) => (text, group.parse().ok()?),
        None => (text, PORTAL_GROUP),
    };
    let (initiator, isid) = text.rsplit_once('+')?;
    let number = u64::from_str_radix(isid, 16).ok()?;
    let [_, _, isid @ ..] = number.to_be_bytes();
    Some(Port {
        initiator: initiator.to_owned(),
        isid,
        group,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_outlive_us_as_text() {
        let mut reservations = Reservations {
            through_power_loss: true,
            ..Reservations::default()
        };
        for n in 1..4 {
            reservations.registrations.push(Registration {
                port: Port::of_host(n),
                key: 0xdead_0000 + u64::from(n),
            });
        }
        reservations.held = Some((
            ReservationType::WriteExclusiveRegistrantsOnly,
            Some(Port::of_host(2)),
        ));
        let again = Reservations::parse(&reservations.text()).expect("reads");
        assert_eq!(again, reservations);
        // As it was written before portal groups.
        let old = "1 5 iqn.2026-01.org.example:host2+800000000002 iqn.2026-01.org.example:host2+800000000002/1/2";
        let old = Reservations::parse(old).expect("reads");
        assert!(old.is_holder(&Port::of_host(2)));
        assert_eq!(old.find(&Port::of_host(2)).map(|r| r.key), Some(2));
        assert_eq!(Reservations::parse("2 0 "), None);
        assert_eq!(Reservations::parse("1 9 "), None);
    }

    #[test]
    fn types_allow_what_they_should() {
        let check = |code: u8, registered: bool, read: bool, write: bool| {
            let mut reservations = Reservations::default();
            reservations.registrations.push(Registration {
                port: Port::of_host(1),
                key: 1,
            });
            if registered {
                reservations.registrations.push(Registration {
                    port: Port::of_host(2),
                    key: 2,
                });
            }
            let held = ReservationType::from_code(code).expect("a type");
            let holder = (!held.is_all_registrants()).then(|| Port::of_host(1));
            reservations.held = Some((held, holder));
            assert!(
                !reservations.refuses(&Port::of_host(1), CommandClass::Write),
                "the holder"
            );
            assert_eq!(
                !reservations.refuses(&Port::of_host(2), CommandClass::Read),
                read,
                "type {code}"
            );
            assert_eq!(
                !reservations.refuses(&Port::of_host(2), CommandClass::Write),
                write,
                "type {code}"
            );
        };
        check(1, false, true, false);
        check(1, true, true, false);
        check(3, true, false, false);
        check(5, false, true, false);
        check(5, true, true, true);
        check(6, false, false, false);
        check(6, true, true, true);
        check(7, true, true, true);
        check(8, false, false, false);
        check(8, true, true, true);
    }
}
