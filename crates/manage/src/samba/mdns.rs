//! What finders of macOS and Linux are told of the shares by multicast DNS (RFC 6762, 6763): a service group of avahi's, written whole
//! for what is shared now. avahi.service(5)

use std::fmt::Write as _;

use super::configuration::SharedDataset;

/// The port of services that are only told of. RFC 863: discard
const DISCARD_PORT: u16 = 9;

/// Returns the service group for shares at a port.
///
/// Time Machine finds its shares by `_adisk._tcp`: of each share its name (`adVN`) and that it is a target over SMB (`adVF=0x82`); of the
/// machine that there is one (`adVF=0x100`). vfs_fruit(8), "fruit:time machine"
#[must_use]
pub fn text(port: u16, shares: &[SharedDataset]) -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" standalone='no'?>\n\
         <!DOCTYPE service-group SYSTEM \"avahi-service.dtd\">\n\
         <!-- Written by sanbox: changes are lost. -->\n\
         <service-group>\n  <name replace-wildcards=\"yes\">%h</name>\n",
    );
    service(&mut text, "_smb._tcp", port, &[]);
    let model = ["model=RackMac".to_owned()];
    service(&mut text, "_device-info._tcp", DISCARD_PORT, &model);
    let backups = shares.iter().filter(|share| share.options.time_machine);
    let disks = backups.enumerate().map(|(number, share)| {
        let name = escaped(&share.name);
        format!("dk{number}=adVN={name},adVF=0x82")
    });
    let records: Vec<String> = std::iter::once("sys=waMa=0,adVF=0x100".to_owned())
        .chain(disks)
        .collect();
    if records.len() > 1 {
        service(&mut text, "_adisk._tcp", DISCARD_PORT, &records);
    }
    text.push_str("</service-group>\n");
    text
}

fn service(text: &mut String, kind: &str, port: u16, records: &[String]) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "  <service>\n    <type>{kind}</type>\n    <port>{port}</port>"
    );
    for record in records {
        let _ = writeln!(text, "    <txt-record>{record}</txt-record>");
    }
    text.push_str("  </service>\n");
}

fn escaped(name: &str) -> String {
    name.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::share;
    use super::*;

    fn share(name: &str, sharesmb: &str) -> SharedDataset {
        SharedDataset {
            name: name.to_owned(),
            path: "/run/sanbox/1".to_owned(),
            options: share::parse(sharesmb).expect("valid").expect("shared"),
            read_only: false,
            case_insensitive: false,
            bytes_max: None,
        }
    }

    #[test]
    fn the_whole_file() {
        let shares = [
            share("photos", "on"),
            share("mac", "name=mac,timemachine"),
            share("R&D", "name=R&D,timemachine"),
        ];
        assert_eq!(text(445, &shares), include_str!("testdata/mdns.service"));
        assert!(!text(445, &shares[..1]).contains("_adisk"));
    }
}
